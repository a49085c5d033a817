"""The page of codes is what the catalogue gives, and has an entry for every code."""

import runpy
from pathlib import Path

from launcher.rank_table.catalogue import CATALOGUE

SCRIPT = Path(__file__).parents[2] / "scripts" / "rank_table_codes.py"


def test_the_page_of_codes_is_what_the_catalogue_gives():
    script = runpy.run_path(str(SCRIPT))
    written = script["PAGE"].read_text(encoding="utf-8")
    assert all(f"### {code}: " in written for code in CATALOGUE)
    assert written == script["page"](), (
        "docs/reference/rank-table-codes.md is stale: run `python scripts/rank_table_codes.py`"
    )
