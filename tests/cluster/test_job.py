"""What agents of other servers are to do: all of a request but what is each machine's own."""

import base64
import hashlib
import json
import lzma
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster.agent_setup import check_table
from launcher.cluster.job import Job, from_text, to_text
from launcher.core.errors import RefusedTableError
from launcher.core.records import Cluster, Device, Layout, Server, Supervision
from launcher.engines.assemble import Request
from tests.servers import uniform

HERE, THERE = uniform(4), uniform(2)
SERVERS = (
    Server("h1", (Device(0, 0), Device(1, 1, "10.1.1.1")), options=(("container_ip", "10.0.0.9"),)),
    Server("h2", (Device(7, 2),), "10.0.0.2", "10.0.0.3", "pod"),
)
REQUEST = Request(
    cluster=Cluster(SERVERS, Path("/t/table.json"), (("mode", "x"),)), layout=Layout(3, 1, 1, 2),
    argv=("python", "a b.py", "é\udcff"), cwd=Path("/work"), runs_dir=Path("/runs"),
    supervision=Supervision(1.5, 2, 30.0, 60.0, (10, 12), ("torch",), 1 << 20), user_env={"SECRET": "x=y\n"},
    inherited_env={"HOME": "/here"}, machine=HERE, bind="core", console="all", here=0, interfaces={0: "ib0"},
    mpi_variables={"OMPI_MCA_coll": "^han"},
)  # fmt: skip
JOB = Job(REQUEST, {"rank_table.json": "{}", "ö": "\n"}, "{ }", "server list", 29500)


def test_a_job_is_one_line_and_comes_back_with_the_other_machine_s_own():
    text = to_text(JOB)
    assert text.isascii()
    assert "\n" not in text
    made = from_text(text, {"HOME": "/there"}, THERE)
    own = {"inherited_env": {"HOME": "/there"}, "machine": THERE, "here": None, "interfaces": {}}
    assert made == replace(JOB, request=replace(REQUEST, **own))
    assert made.request.cluster.source == Path("/t/table.json")
    assert "HOME" not in lzma.decompress(base64.b64decode(text)).decode()
    plain = Request(Cluster.local(1), Layout(), (), Path("/"), Path("/"), Supervision(), {}, {}, THERE)
    assert from_text(to_text(Job(plain, {}, None, "", None)), {}, THERE) == Job(plain, {}, None, "", None)


def test_a_job_of_a_python_without_lzma_is_understood(monkeypatch):
    text = to_text(JOB)
    monkeypatch.setattr("launcher.cluster.job.lzma", None)
    with pytest.raises(ValueError, match="Python on this machine has no lzma module"):
        from_text(text, {}, THERE)
    plain = to_text(JOB)
    monkeypatch.undo()
    assert from_text(plain, {}, THERE) == from_text(text, {}, THERE)


def test_a_table_that_stands_in_a_job_several_times_costs_little_more_than_once():
    digest = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(2000))
    table = "\n".join(digest)
    once, twice = (
        len(to_text(replace(JOB, files=files, table_text=table))) for files in ({}, {"rank_table.json": table})
    )
    assert twice < 1.01 * once


def packed(value):
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


@pytest.mark.parametrize(
    "text",
    ["", "x", "é", base64.b64encode(b"x").decode(), to_text(JOB)[:-20], packed(None), packed([]), packed({}), packed("x"),
     packed({"request": None}), packed({"request": {}}), packed({"request": {"argv": 1}, "files": {}})],
    ids=lambda text: text[:16],
)  # fmt: skip
def test_what_is_no_job_is_refused(text):
    with pytest.raises(ValueError, match=r"^not a valid [Jj]ob"):
        from_text(text, {}, THERE)


def test_a_table_that_says_the_same_is_the_same(tmp_path):
    """As HCCL reads it; ranks get a copy, whatever stands there. Where none stands, none is another one."""
    path = tmp_path / "table.json"
    job = replace(JOB, request=replace(REQUEST, cluster=Cluster(SERVERS, path)), table_text='{"a": 1, "b": 2}')
    check_table(job)
    path.write_text('{"b":2,\n "a":1}\n')
    check_table(job)
    for other in (b'{"a": 1, "b": 3}', b"", b"\xff"):
        path.write_bytes(other)
        with pytest.raises(RefusedTableError, match="differs from the rank table"):
            check_table(job)
