"""Tables as people published them, with the verdict that HCCL's own parser gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.rank_table import Profile, read_rank_table
from launcher.rank_table.formats import Format

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "rank_table_corpus"
EXPECTED = CORPUS / "EXPECTED.json"
ROWS = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.is_file() else {}

# Where the verdict is that of a 910, whose servers have eight devices in two rings.
ONLY_ON_910 = {
    "libochao-huawei__hcomm__ut_hcom_get_new_rank_info_devId_err.json",
    "libochao-huawei__hcomm__ut_rank_select_err.json",
}
FORMATS = {
    "v1.1": {Format.V1_1},
    "v1.2": {Format.V1_2, Format.LOCAL_RESOURCES},
    "v2.0": {Format.V2_0},
    "legacy-lab": {Format.LAB},
    "legacy-cloud": {Format.CLOUD},
    "v1.0+cluster_list": {Format.CROSS_CLUSTER},
    "vllm-pd": {Format.DISAGGREGATED_PREFILL},
    "1.9": {None},
}

pytestmark = pytest.mark.skipif(not ROWS, reason="the corpus of rank tables (../shared/rank_table_corpus) is not here")


def rows_where(condition):
    return sorted(name for name, row in ROWS.items() if condition(row))


def is_checked(row):
    """Whether this version reads the format, or the text is none that JSON knows."""
    return row["verdict"] != "n/a" and (row["format"] in ("v1.0", "unparsable") or "excerpt" in row["format"])


@pytest.mark.parametrize("name", rows_where(is_checked))
def test_verdict_is_that_of_hccl(name):
    """A v1.0 table is accepted or refused as HCCL does."""
    report = read_rank_table(CORPUS / name, Profile("910" if name in ONLY_ON_910 else "auto"))
    assert ("faulty" if report.cluster is None else "valid") == ROWS[name]["verdict"], report.render()
    if report.cluster is not None:
        assert report.cluster.device_count == ROWS[name]["devices"]


@pytest.mark.parametrize("name", rows_where(lambda row: row["format"] in FORMATS))
def test_other_formats_are_recognised(name):
    """A table of another format is called by its name and nothing else is said about it."""
    report = read_rank_table(CORPUS / name)
    assert report.format in FORMATS[ROWS[name]["format"]]
    assert [problem.code for problem in report.errors] == ["RT202" if report.format else "RT203"]


@pytest.mark.parametrize("name", rows_where(lambda row: row["verdict"] == "n/a"))
def test_related_files_are_no_clusters(name):
    """Files that HCCL does not read give an explanation, and no cluster."""
    report = read_rank_table(CORPUS / name)
    assert report.cluster is None
    assert report.errors[0].hint
