"""Tables as people published them, with the verdict that HCCL's own parser gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.rank_table import Profile, read_rank_table
from launcher.rank_table.table_format import Format

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "rank_table_corpus"
EXPECTED = CORPUS / "EXPECTED.json"
ROWS = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.is_file() else {}

# Where the verdict is that of a 910, whose servers have eight devices in two rings: other chips take these tables.
ONLY_ON_910 = {
    "libochao-huawei__hcomm__ut_hcom_get_new_rank_info_devId_err.json",
    "libochao-huawei__hcomm__ut_rank_select_err.json",
}
# What a row calls the format, where it is not by the format's own name.
OTHER_NAMES = {"1.9": None, "unparsable": None}

pytestmark = pytest.mark.skipif(not ROWS, reason="the corpus of rank tables (../shared/rank_table_corpus) is not here")


def read(name):
    return read_rank_table(CORPUS / name, Profile("910" if name in ONLY_ON_910 else "auto"))


@pytest.mark.parametrize("name", sorted(ROWS))
def test_verdict_is_that_of_hccl(name):
    """A table is accepted or refused as HCCL does; what HCCL does not read is refused with an explanation."""
    report, row = read(name), ROWS[name]
    assert report.valid == (row["verdict"] == "valid"), report.render()
    assert report.valid or report.errors[0].message
    if report.valid:
        assert report.cluster.device_count == report.devices == row["devices"]


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if "excerpt" not in row["format"]))
def test_format_is_recognised(name):
    """Each table is called by the name of its format, or by that of the related file that it is."""
    found, named = read(name).format, ROWS[name]["format"]
    expected = OTHER_NAMES[named] if named in OTHER_NAMES else Format(named)
    related = {Format.LOCAL_RESOURCES, Format.ROOT_INFO} if ROWS[name]["verdict"] == "n/a" else set()
    assert named == "unparsable" or found == expected or found in related


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row["verdict"] == "n/a"))
def test_related_files_say_what_to_do(name):
    """Files that HCCL does not read give a hint, and no cluster."""
    report = read(name)
    assert report.cluster is None
    assert report.errors[0].hint
