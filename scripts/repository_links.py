"""Show links to files outside docs/ as text. MkDocs calls this hook: these files are in the repository, not on the site."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:examples|launcher|templates)/[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the Markdown of a page, with the text of each link that leaves docs/ in place of the link."""
    return OUTSIDE.sub(r"\1", markdown)
