"""What tlaunch takes, HCCL takes: changed tables of every format are judged by both.

HCCL speaks through an oracle that was written from its published source (tests/programs/hccl_oracle), and shares nothing
with the launcher. TLAUNCH_STRESS=1 judges 40,000 tables; `-s` shows which codes refuse more than HCCL does.
"""

from __future__ import annotations

import ast
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from launcher.rank_table import Profile, parse_rank_table
from launcher.rank_table.table_format import Format
from tests.programs import hccl_oracle

from . import mutated_tables, tables

DOCUMENTS = 40_000 if os.environ.get("TLAUNCH_STRESS") == "1" else 1_200
SEED = 7
PATH = Path("table.json")
# Tables as people published them, with the verdict that HCCL's own parser gives them.
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "rank_table_corpus"
ROWS = json.loads((CORPUS / "EXPECTED.json").read_text(encoding="utf-8")) if CORPUS.is_dir() else {}
# Where the verdict is that of a 910, whose servers have eight devices in two rings: other chips take these tables.
ONLY_ON_910 = {
    "libochao-huawei__hcomm__ut_hcom_get_new_rank_info_devId_err.json",
    "libochao-huawei__hcomm__ut_rank_select_err.json",
}

# The hardware that "auto" stands for, where it is not any that reads the format.
HARDWARE = {Format.V1_2: ("a3",), Format.CLOUD: ("910",), Format.V2_0: ("a5",)}
CHIP_INFOS = {"910": "910", "910B": "a2", "910_93": "a3", "310P3": "300i"}

# What HCCL refuses and tlaunch lets pass, with the reason.
ALLOWED = {"CheckSingleServerComm: not on the same plane": "HCCL_INTRA_ROCE_ENABLE=1 lifts it: a warning, RT428"}


def chips(report, chip):
    """The hardware that a table is read for: it is refused where all of it refuses."""
    if chip != "auto":
        return (chip,)
    if report.format is not Format.LAB:
        return HARDWARE.get(report.format, ("910", "a2", "a3", "300i"))
    named = report.document.value.get("chip_info")
    return (CHIP_INFOS.get(named if isinstance(named, str) else "", "910"),)


def judge(data, chip):
    """What tlaunch says, and why HCCL refuses the table; None where some of the hardware takes it."""
    report = parse_rank_table(data, PATH, Profile(chip))
    refusals = [hccl_oracle.refusal(data, one) for one in chips(report, chip)]
    return report, next(iter(refusals)) if all(refusals) else None


SOUND = [(name, chip) for name, (_, known) in mutated_tables.SEEDS.items() for chip in known]


@pytest.mark.parametrize(("name", "chip"), SOUND)
def test_both_take_a_sound_table(name, chip):
    report, refusal = judge(json.dumps(mutated_tables.SEEDS[name][0]).encode(), chip)
    assert report.valid, report.render()
    assert refusal is None


@pytest.mark.timeout(1200)
def test_nothing_is_taken_that_hccl_refuses():
    taken: Counter[str] = Counter()
    stricter: Counter[str] = Counter()
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for mutant in mutated_tables.mutants(DOCUMENTS, SEED):
        report, refusal = judge(mutant.data, mutant.chip)
        verdicts[report.valid, refusal is None] += 1
        if report.valid and refusal is not None and refusal not in ALLOWED:
            taken[f"{refusal} ({mutant.seed}, {mutant.chip})"] += 1
        elif not report.valid and refusal is None:
            stricter.update({problem.code for problem in report.errors})
    print(f"{DOCUMENTS:,} tables; refused by tlaunch alone: {verdicts[False, True]:,} {dict(stricter.most_common())}")
    assert taken == {}
    assert verdicts[True, True] > DOCUMENTS // 5
    assert verdicts[False, False] > DOCUMENTS // 5
    assert verdicts[False, True] < DOCUMENTS // 50


@pytest.mark.skipif(not ROWS, reason="the corpus of rank tables (../shared/rank_table_corpus) is not here")
@pytest.mark.parametrize("name", sorted(ROWS))
def test_published_tables_are_judged_as_hccl_does(name):
    row = ROWS[name]
    report, refusal = judge((CORPUS / name).read_bytes(), "910" if name in ONLY_ON_910 else "auto")
    assert report.valid == (row["verdict"] == "valid"), report.render()
    assert report.valid or report.errors[0].message
    if report.valid:
        assert report.cluster.device_count == report.devices == row["devices"]
    related = ()
    if row["verdict"] == "n/a":
        assert report.cluster is None
        assert report.errors[0].hint
        related = (Format.LOCAL_RESOURCES, Format.ROOT_INFO)
    else:
        assert (refusal is None) == report.valid, refusal
    named = row["format"]
    if "excerpt" not in named and named != "unparsable":
        assert report.format in (None if named == "1.9" else Format(named), *related)


def test_oracle_knows_nothing_of_the_launcher():
    """Two readings of HCCL's source that share code would share its faults."""
    for path in [Path(tables.__file__), Path(mutated_tables.__file__), *Path(hccl_oracle.__file__).parent.glob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not [name for name in named if name.startswith("launcher")]
