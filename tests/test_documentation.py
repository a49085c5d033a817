"""Links in the documentation lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

from launcher.cli.launch.external.options import counterpart
from launcher.recipes.catalog import RECIPES
from launcher.recipes.load import load_settings

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
    assert made["ONLY_IN_REPOSITORY"] in (ROOT / "docs" / made["PAGE"]).read_text(encoding="utf-8")
    text = "\n".join(made["sections"]("tlaunch", made["tlaunch"], None))
    for name in ("run", "report", "table fix", "ckpt merge"):
        assert f"\n## `tlaunch {name}`\n" in text


def test_the_page_of_settings_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))
    assert made["PAGE"].read_text() == made["page"](), (
        "docs/reference/settings.md: run `python scripts/settings_page.py`"
    )


def test_the_sizes_of_the_tutorial_are_those_of_its_file():
    recipe = RECIPES["transformer"].settings
    tutorial, default = load_settings(recipe, "recipes/transformer/tutorial.toml"), recipe()
    section = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").partition("## The sizes of the tutorial")[2]
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| (.+) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert rows
    for group, name, *shown in rows:
        assert shown == [str(getattr(getattr(of, group), name)) for of in (tutorial, default)], name


def test_every_page_is_at_most_two_links_from_the_readme():
    reached = {ROOT / "README.md"}  # docs/index.md takes its place on the site
    for _ in range(2):
        texts = [(page.parent, page.read_text(encoding="utf-8")) for page in reached]
        links = [(place / link).resolve() for place, text in texts for link in re.findall(r"\]\(([^)\s#]+\.md)", text)]
        reached |= {page for page in links if page.is_file()}
    assert set((ROOT / "docs").rglob("*.md")) - reached == {ROOT / "docs/index.md"}


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
