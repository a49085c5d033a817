"""`tlaunch table convert` as a person types it."""

import io
import json
import stat
from contextlib import nullcontext, redirect_stderr

import pytest

from launcher.cli.commands.table.files import check_output, hand_over
from launcher.core.errors import UsageError
from launcher.rank_table import load_cluster


@pytest.fixture
def convert(launcher):
    def run(*arguments, stdin=None, code=0):
        done = launcher.call("table", "convert", *arguments, input=stdin)
        assert done.returncode == code, done
        return done

    return run


@pytest.fixture(autouse=True)
def table(launcher, sample_tables):
    """A table of 16 devices on two servers, as table.json."""
    return launcher.write("table.json", (sample_tables / "rank_table_16pcs.json").read_text())


def test_stdout_is_the_result_alone(launcher, snapshot):
    """The new text is on standard output, notes on standard error."""
    launcher.write("wide.txt", "node10 slots=1\nnode9 slots=1\n")
    assert launcher.scene(
        "table convert table.json --to hostfile",
        "table convert rank_tables/rank_table_2pcs.json --to nodelist",
        "table convert --from hostfile wide.txt --to nodelist",
        code=0,
    ) == snapshot(name="files")
    commands = ("table convert - --to hostfile", "table convert - --devices 2 --to rankfile")
    assert launcher.scene(*commands, code=0, input="node1\nnode2\n") == snapshot(name="stdin")


def test_the_same_format_gives_the_canonical_text(convert, table):
    """A table in canonical form is written as it is."""
    assert convert(table, "--to", "1.0").stdout == table.read_text()


def test_output_is_written_and_not_replaced(launcher, convert, table, umask, snapshot):
    """The file is readable for owner and group; another run needs --force, and is told before anything is read."""
    output = launcher.directory / "hosts"
    assert convert("table.json", "--to", "hostfile", "--output", "hosts").stdout == ""
    assert stat.S_IMODE(output.stat().st_mode) == 0o640 & ~umask
    assert launcher.refused(2, "table convert missing.json --to hostfile --output hosts") == snapshot(name="exists")
    done = convert("table.json", "--to", "nodelist", "--output", "hosts", "--force")
    assert launcher.transcript(done) == snapshot(name="forced")
    assert output.read_text().endswith("\n")


def test_there_and_back_through_files(launcher, convert, table, snapshot):
    """A rankfile made of a table makes the table again, but for what it has no place for, and says what is missing."""
    convert("table.json", "--to", "rankfile", "--output", "ranks")
    result = convert("ranks", "--to", "v1.0")
    again, before = json.loads(result.stdout), json.loads(table.read_text())
    for server in before["server_list"]:
        server.pop("host_nic_ip", None)
        server["hardware_type"] = "cpu"
        for device in server["device"]:
            device.pop("device_ip")
    assert again == before
    # What has no addresses is no table for HCCL, and can still be converted.
    launcher.write("bare.json", result.stdout.replace('"hardware_type": "cpu"', '"hardware_type": "npu"'))
    back = convert("bare.json", "--to", "rankfile")
    assert back.stdout == (launcher.directory / "ranks").read_text()
    assert (result.stderr + back.stderr).splitlines() == snapshot


def test_a_name_that_hccl_refuses_is_noted(convert):
    """A table has to be called .json; a hostfile has not."""
    assert "RT406" in convert("table.json", "--to", "v1.2", "--output", "table.txt").stderr
    assert "RT406" not in convert("table.json", "--to", "hostfile", "--output", "hosts.txt").stderr


def test_what_is_refused(launcher, snapshot):
    """With the file, the target, and the reason; a faulty table shows its problems, with the exit code of `validate`."""
    launcher.write("broken.json", '{"version": "1.0",}')
    launcher.write("hosts", "node1\nnode1\n")
    assert launcher.refused(1, "table convert broken.json --to v1.2") == snapshot(name="1")
    assert launcher.refused(3, "table convert table.json --to v2.0") == snapshot(name="3")
    assert launcher.refused(
        2,
        "table convert table.json --to v9",
        "table convert table.json --to v1.0 --from v1.2",
        "table convert table.json --to v1.0 --from nonsense",
        "table convert table.json --to v1.0 --devices 2",
        "table convert table.json --to v1.0 --drop colour",
        "table convert table.json --to v1.0 --drop device_id",
        "table convert table.json --to hostfile --output . --force",
        "table convert none.json --to v1.0",
        "table convert rank_table_2pcs.json --to nodelist",
    ) == snapshot(name="2")
    # A name alone could be both: --from makes it a node list, in which no name comes twice.
    assert launcher.call("table", "convert", "hosts", "--to", "hostfile").stdout == "node1 slots=2\n"
    text = ("table convert hosts --from nodelist --to hostfile", "table convert - --to hostfile")
    assert launcher.refused(1, *text, input="hello\n") == snapshot(name="text")


@pytest.mark.parametrize("target", ["v1.0", "v1.2"])
def test_a_table_of_hosts_alone_is_marked_and_valid(launcher, convert, target, snapshot):
    """A hostfile has no addresses: the table says that it is for CPU or GPU, a note does too, and it is valid."""
    done = convert("-", "--to", target, stdin="node1 slots=2\nnode2 slots=2\n")
    assert launcher.transcript(done) == snapshot
    assert launcher.call("validate", "-", input=done.stdout).returncode == 0


def test_one_host_is_not_marked(convert):
    """A single server needs no addresses, so the table may be for any hardware."""
    result = convert("-", "--to", "v1.0", stdin="node1 slots=2\n")
    assert ("hardware_type" in result.stdout, "CPU" in result.stderr) == (False, False)


def test_keys_that_are_left_behind_are_named(launcher, convert, table, snapshot):
    """Nothing is lost without a word: each key once, and of many keys some; keys of v1.1 mean nothing elsewhere."""
    document = json.loads(table.read_text())
    document.update({"job/name": "x", "~": 1})
    for server in document["server_list"]:
        server["rack"] = "7"
    launcher.write("more.json", document)
    launcher.write("many.json", {**document, **{f"key{number}": "" for number in range(20)}})
    convert("table.json", "--to", "v1.1", "-o", "heterogeneous.json")
    told = {
        name: convert(name, "--to", "v1.0").stderr.splitlines() for name in ("more.json", "many.json", "table.json")
    }
    assert {**told, "v1.1": convert("heterogeneous.json", "--to", "v1.0").stderr.splitlines()} == snapshot


def test_the_board_of_a_lab_stays_or_is_named(launcher, convert, snapshot):
    """From lab to lab it comes along; another format leaves it behind with a note, as its list of servers always is."""
    convert("table.json", "--to", "legacy-lab", "--drop", "host_ip", "--output", "lab.json")
    document = json.loads((launcher.directory / "lab.json").read_text())
    document.update({"board_id": "0x002f", "para_plane_nic_name": ["p0", "p1"], "para_plane_nic_num": "2"})
    launcher.write("lab.json", document)
    assert json.loads(convert("lab.json", "--to", "legacy-lab").stdout) == document
    document["group_list"][0]["server_list"] = []
    launcher.write("lab.json", document)
    assert convert("lab.json", "--to", "v1.0").stderr.splitlines() == snapshot


@pytest.mark.parametrize("force", [True, False])
def test_a_file_made_meanwhile_is_not_replaced_unasked(table, tmp_path, force):
    """Between the first look and the writing somebody else may have taken the name."""
    output, cluster = tmp_path / "new.json", load_cluster(table)[0]
    check_output(output, force=force)
    output.write_text("precious")
    with redirect_stderr(io.StringIO()), nullcontext() if force else pytest.raises(UsageError):
        hand_over("table", cluster, "v1.0", output, force=force)
    assert output.read_text() == ("table" if force else "precious")
    assert [path.name for path in tmp_path.iterdir() if path != table] == ["new.json"]
