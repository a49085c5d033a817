"""The page "Where to change what" is collected from the packages' docstrings, and names files that exist."""

import ast
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "where_to_change.py"))
MAX_WORDS = 40  # of an entry, file names included


def test_the_page_is_what_the_docstrings_give():
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), (
        "docs/internals/where-to-change-what.md is stale: run `python scripts/where_to_change.py`"
    )


def test_every_file_exists():
    missing = [
        f"{package}: {name}"
        for package, entries in SCRIPT["entries_of_packages"]().items()
        for what, where, rule in entries
        for name in [*where, *re.findall(r"[\w/]+(?:\.(?:py|md|toml)\b|/(?=[ ,;.]|$))", f"{what} {rule}")]
        if not (ROOT / package / name).exists() and not (ROOT / name).exists()
    ]
    assert not missing


def test_every_line_of_a_docstring_is_an_entry():
    found = SCRIPT["entries_of_packages"]()
    for path in (ROOT / "launcher").rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        entries = found.get(path.parent.relative_to(ROOT).as_posix(), [])
        assert len(re.findall(r"^To change ", docstring, re.MULTILINE)) == len(entries), path
        for what, where, rule in entries:
            assert len(f"{what} {' '.join(where)} {rule}".split()) <= MAX_WORDS, what
