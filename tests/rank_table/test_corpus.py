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

pytestmark = pytest.mark.skipif(not ROWS, reason="the corpus of rank tables (../shared/rank_table_corpus) is not here")


def read(name):
    return read_rank_table(CORPUS / name, Profile("910" if name in ONLY_ON_910 else "auto"))


@pytest.mark.parametrize("name", sorted(ROWS))
def test_verdict_and_format_are_those_of_hccl(name):
    """A table is accepted or refused as HCCL does, and called by the name of its format or of the related file it is.

    What HCCL does not read is refused with an explanation and a hint, and gives no cluster.
    """
    report, row = read(name), ROWS[name]
    assert report.valid == (row["verdict"] == "valid"), report.render()
    assert report.valid or report.errors[0].message
    if report.valid:
        assert report.cluster.device_count == report.devices == row["devices"]
    related = ()
    if row["verdict"] == "n/a":
        assert report.cluster is None
        assert report.errors[0].hint
        related = (Format.LOCAL_RESOURCES, Format.ROOT_INFO)
    named = row["format"]
    if "excerpt" not in named and named != "unparsable":
        assert report.format in (None if named == "1.9" else Format(named), *related)
