"""The screens of the documentation are what the commands print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "rank-tables.md").read_text(encoding="utf-8")
SCREENS = dict(re.findall(r"^\$ tlaunch validate (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TABLES = sorted(path.name for path in (HERE / "readme_tables").iterdir())


def test_every_screen_has_its_table():
    """No screen of `tlaunch validate` stands in the page without the file that gives it."""
    assert sorted(SCREENS) == TABLES


@pytest.mark.parametrize("name", TABLES)
def test_validate_prints_the_screen(name, launcher):
    shutil.copy(HERE / "readme_tables" / name, launcher.directory)
    done = launcher.call("validate", name)
    assert done.returncode == 1
    assert done.stdout == SCREENS[name]
