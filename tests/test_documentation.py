"""Links in the documentation lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

from launcher.cli.launch.external.options import counterpart

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "launcher").rglob("*.md")])


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_the_page_of_commands_has_a_section_for_each():
    made = runpy.run_path(str(ROOT / "scripts" / "command_pages.py"))
    text = "\n".join(made["sections"]("tlaunch", made["tlaunch"], None))
    for name in ("run", "report", "table fix", "ckpt merge"):
        assert f"\n## `tlaunch {name}`\n" in text


def test_the_page_of_settings_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))
    assert made["PAGE"].read_text() == made["page"](), (
        "docs/reference/settings.md: run `python scripts/settings_page.py`"
    )


@pytest.mark.parametrize(("page", "launchers"), [("docs/tutorials/from-torchrun.md", 3), ("docs/mindspore.md", 1)])
def test_options_of_other_launchers_are_what_the_tables_say(page, launchers):
    """The last column names the option that takes the same value."""
    rows = re.findall(r"^\| .*`-.* \|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    compared = set()
    for row in rows:
        *others, here = (column.strip() for column in row.strip("|").split(" | "))
        if len(others) != launchers:
            continue
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(re.findall(r"`(.*?)`", " ".join(others)))):
            found = counterpart(option)
            assert found is not None, option
            if found.here is not None:
                assert found.here in here, row
                compared.add(found.here)
    assert {"--devices", "--master-port", "--runs-dir", "--rank-table"} & compared
