"""`tlaunch table convert` as a person types it."""

import io
import json
import stat
from contextlib import nullcontext, redirect_stderr

import pytest

from launcher.cli.commands.table.table_files import check_output, hand_over
from launcher.core.errors import UsageError
from launcher.rank_table import load_cluster
from tests.rank_table.tables import make_lab

from .transcript import typed_lines

REFUSED = {
    1: "broken.json --to v1.2",
    2: """
table.json --to v9; table.json --to legacy-lab; table.json --to v1.0 --from v1.2; table.json --to v1.0 --from nonsense
table.json --to v1.0 --devices 2; table.json --to v1.0 --drop colour; table.json --to v1.0 --drop device_id
table.json --to hostfile --output . --force; none.json --to v1.0; rank_table_2pcs.json --to nodelist
    """,
    3: "table.json --to v2.0",
}


@pytest.fixture(autouse=True)
def table(launcher, sample_tables):
    """A table of 16 devices on two servers, as table.json."""
    return launcher.write("table.json", (sample_tables / "rank_table_16pcs.json").read_text())


def convert(options):
    return [f"table convert {each}" for each in typed_lines(options)]


def test_stdout_is_the_result_alone(launcher, table, snapshot):
    launcher.write("wide.txt", "node10 slots=1\nnode9 slots=1\n")
    launcher.write("hosts", "node1\nnode1\n")
    files = "table.json --to hostfile; rank_tables/rank_table_2pcs.json --to nodelist; hosts --to hostfile"
    shown = launcher.scene(*convert(f"{files}; --from hostfile wide.txt --to nodelist"), code=0)
    assert shown == snapshot(name="files")
    stdin = launcher.scene(*convert("- --to hostfile; - --devices 2 --to rankfile"), code=0, input="node1\nnode2\n")
    assert stdin == snapshot(name="stdin")
    # A table in canonical form is written as it is.
    assert launcher.call("table", "convert", table, "--to", "1.0").stdout == table.read_text()


def test_output_is_written_and_not_replaced(launcher, umask, snapshot):
    written = "table.json --to hostfile --output hosts; table.json --to v1.2 --output table.txt"
    assert launcher.scene(*convert(written), code=0) == snapshot(name="written")
    assert stat.S_IMODE((launcher.directory / "hosts").stat().st_mode) == 0o640 & ~umask
    assert launcher.refused(2, *convert("missing.json --to hostfile --output hosts")) == snapshot(name="exists")
    again = launcher.scene(*convert("table.json --to nodelist --output hosts --force"), code=0)
    assert again == snapshot(name="forced")
    assert (launcher.directory / "hosts").read_text() == "10.0.40.[11-12]\n"


def test_there_and_back_through_files(launcher, table, snapshot):
    there, back = convert("table.json --to rankfile --output ranks; ranks --to v1.0")
    launcher.scene(there, code=0)
    result = launcher.call(*back.split())
    again, before = json.loads(result.stdout), json.loads(table.read_text())
    for server in before["server_list"]:
        server.pop("host_nic_ip", None)
        server["hardware_type"] = "cpu"
        for device in server["device"]:
            device.pop("device_ip")
    assert again == before
    # What has no addresses is no table for HCCL, and can still be converted.
    launcher.write("bare.json", result.stdout.replace('"hardware_type": "cpu"', '"hardware_type": "npu"'))
    bare = launcher.call("table", "convert", "bare.json", "--to", "rankfile")
    assert bare.stdout == (launcher.directory / "ranks").read_text()
    assert (result.stderr + bare.stderr).splitlines() == snapshot


def test_what_is_refused(launcher, snapshot):
    launcher.write("broken.json", '{"version": "1.0",}')
    launcher.write("hosts", "node1\nnode1\n")
    for code, typed in REFUSED.items():
        assert launcher.refused(code, *convert(typed)) == snapshot(name=str(code))
    # A name alone could be both: --from makes it a node list, in which no name comes twice.
    text = convert("hosts --from nodelist --to hostfile; - --to hostfile")
    assert launcher.refused(1, *text, input="hello\n") == snapshot(name="text")


def test_a_table_of_hosts_alone_is_marked_and_valid(launcher, snapshot):
    for target in ("v1.0", "v1.2"):
        done = launcher.call("table", "convert", "-", "--to", target, input="node1 slots=2\nnode2 slots=2\n")
        assert launcher.transcript(done) == snapshot(name=target)
        assert launcher.call("validate", "-", input=done.stdout).returncode == 0
    assert launcher.scene(*convert("- --to v1.0"), code=0, input="node1 slots=2\n") == snapshot(name="one host")


def test_keys_that_are_left_behind_are_named(launcher, table, snapshot):
    document = json.loads(table.read_text())
    document.update({"job/name": "x", "~": 1})
    for server in document["server_list"]:
        server["rack"] = "7"
    launcher.write("more.json", document)
    launcher.write("many.json", {**document, **{f"key{number}": "" for number in range(20)}})
    ranks = [{"rank_id": "0", "device_id": "0", "rank_ip": "192.1.0.1"}]
    nodes = [{"node_addr": "10.0.0.1", "ranks": ranks}]
    heterogeneous = {"version": "1.1", "status": "completed", "collective_id": "job", "node_list": nodes}
    launcher.write("heterogeneous.json", heterogeneous)
    names = ("more.json", "many.json", "table.json", "heterogeneous.json")
    told = {name: launcher.call("table", "convert", name, "--to", "v1.0").stderr.splitlines() for name in names}
    assert told == snapshot


def test_the_board_of_a_lab_is_left_behind(launcher, snapshot):
    document = make_lab(2, 8)
    document.update({"board_id": "0x002f", "para_plane_nic_name": ["p0", "p1"], "para_plane_nic_num": "2"})
    document["group_list"][0]["server_list"] = []
    launcher.write("lab.json", document)
    assert launcher.call("table", "convert", "lab.json", "--to", "v1.0").stderr.splitlines() == snapshot


@pytest.mark.parametrize("force", [True, False])
def test_a_file_made_meanwhile_is_not_replaced_unasked(table, tmp_path, force):
    output, cluster = tmp_path / "new.json", load_cluster(table)[0]
    check_output(output, force=force)
    output.write_text("precious")
    with redirect_stderr(io.StringIO()), nullcontext() if force else pytest.raises(UsageError):
        hand_over("table", cluster, "v1.0", output, force=force)
    assert output.read_text() == ("table" if force else "precious")
    assert [path.name for path in tmp_path.iterdir() if path != table] == ["new.json"]
