"""`tlaunch table convert` as a person types it."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import tempfile
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

import pytest

from launcher.cli.commands.table.convert import convert
from launcher.cli.commands.table.output import check_output, hand_over
from launcher.core.errors import RefusedTableError, TlaunchError, UnreadableError, UsageError
from launcher.rank_table import load_cluster


def table_convert(*arguments, stdin=""):
    """In this process, with a stdout that has a descriptor, as a command's has."""
    given = mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    with (
        tempfile.TemporaryFile("w+") as stdout,
        redirect_stdout(stdout),
        redirect_stderr(io.StringIO()) as stderr,
        given,
    ):
        value = convert.main([str(argument) for argument in arguments], standalone_mode=False)
        stdout.seek(0)
        return SimpleNamespace(stdout=stdout.read(), stderr=stderr.getvalue(), return_value=value)


@pytest.fixture
def table(sample_tables):
    return sample_tables / "rank_table_16pcs.json"


def umask():
    """The process's, which can be read only by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_stdout_is_the_result_alone(table):
    """The new text is on standard output, notes on standard error."""
    result = table_convert(table, "--to", "hostfile")
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["slots=8", "slots=8"]
    assert result.stderr.startswith("note: left behind, since a hostfile names only hosts and slots: ")
    assert result.return_value == 0


def test_the_same_format_gives_the_canonical_text(table):
    """A table in canonical form is written as it is."""
    assert table_convert(table, "--to", "1.0").stdout == table.read_text()


def test_output_is_written_and_not_replaced(table, tmp_path):
    """The file is readable for owner and group; another run needs --force, and is told before anything is read."""
    output = tmp_path / "hosts"
    assert table_convert(table, "--to", "hostfile", "--output", output).stdout == ""
    assert stat.S_IMODE(output.stat().st_mode) == 0o640 & ~umask()
    with pytest.raises(UsageError, match="exists already"):
        table_convert(tmp_path / "missing.json", "--to", "hostfile", "--output", output)
    result = table_convert(table, "--to", "nodelist", "--output", output, "--force")
    assert f"wrote {output}: nodelist, 2 servers, 16 devices" in result.stderr
    assert output.read_text().endswith("\n")
    with pytest.raises(UsageError, match="is no regular file"):
        table_convert(table, "--to", "hostfile", "--output", tmp_path, "--force")


def test_there_and_back_through_files(table, tmp_path):
    """A rankfile made of a table makes the table again, but for what it has no place for, and says what is missing."""
    ranks = tmp_path / "ranks"
    table_convert(table, "--to", "rankfile", "--output", ranks)
    result = table_convert(ranks, "--to", "v1.0")
    assert f"note: {ranks} is read as a rankfile; --from says otherwise" in result.stderr
    assert "HCCL would refuse" not in result.stderr
    again, before = json.loads(result.stdout), json.loads(table.read_text())
    for server in before["server_list"]:
        server.pop("host_nic_ip", None)
        server["hardware_type"] = "cpu"
        for device in server["device"]:
            device.pop("device_ip")
    assert again == before
    # What has no addresses is no table for HCCL, and can still be converted.
    bare = tmp_path / "bare.json"
    bare.write_text(result.stdout.replace('"hardware_type": "cpu"', '"hardware_type": "npu"'))
    back = table_convert(bare, "--to", "rankfile")
    assert back.stdout == ranks.read_text()
    assert f"note: {bare}: 2 of the warnings that `tlaunch validate` shows: RT333\n" in back.stderr


def test_a_name_that_hccl_refuses_is_noted(table, tmp_path):
    """A table has to be called .json; a hostfile has not."""
    result = table_convert(table, "--to", "v1.2", "--output", tmp_path / "table.txt")
    assert "HCCL would refuse the result: RT406" in result.stderr
    assert "RT406" not in table_convert(table, "--to", "hostfile", "--output", tmp_path / "hosts.txt").stderr


def test_stdin_is_read_and_recognised():
    """The output of `scontrol show hostnames` needs no --from; devices are given."""
    result = table_convert("-", "--devices", 2, "--to", "rankfile", stdin="node1\nnode2\n")
    assert result.stdout.splitlines()[3] == "rank 3=node2 slot=1"


def test_a_node_list_without_counts_is_noted():
    """One device per host is an assumption, and said."""
    result = table_convert("-", "--to", "hostfile", stdin="node[1-2]\n")
    assert result.stdout == "node1 slots=1\nnode2 slots=1\n"
    assert "one device per host; --devices N gives each N" in result.stderr


def test_from_decides_what_a_text_is(tmp_path):
    """A name alone could be both: --from makes it a node list."""
    hosts = tmp_path / "hosts"
    hosts.write_text("node1\nnode1\n")
    assert table_convert(hosts, "--to", "hostfile").stdout == "node1 slots=2\n"
    with pytest.raises(TlaunchError, match="hosts:2: 'node1' is listed twice, first on line 1"):
        table_convert(hosts, "--from", "nodelist", "--to", "hostfile")


def test_a_faulty_table_shows_its_problems(tmp_path):
    """Each with its line, on standard error; the exit code is that of `validate`."""
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": "1.0",}')
    result = table_convert(broken, "--to", "v1.2")
    assert result.return_value == 1
    assert result.stdout == ""
    assert f"{broken}:1:18: error[RT103]" in result.stderr


def test_what_cannot_be_expressed_is_refused(table):
    """The file is named, the target, and the reason; nothing is written."""
    with pytest.raises(RefusedTableError, match=r"rank_table_16pcs\.json: error: v2\.0 cannot express this"):
        table_convert(table, "--to", "v2.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "v9"), "'v9' is no format that tables are converted from or to"),
        (("--to", "v1.0", "--from", "v1.2"), "was given as v1.2, and is v1.0"),
        (("--to", "v1.0", "--from", "nonsense"), "'nonsense' is no format"),
        (("--to", "v1.0", "--devices", "2"), "a table lists its devices itself"),
        (("--to", "v1.0", "--drop", "colour"), "--drop colour"),
    ],
)
def test_wrong_usage_is_refused(table, arguments, message):
    """Each says what cannot be meant."""
    with pytest.raises(UsageError) as caught:
        table_convert(table, *arguments)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_missing_file_is_unreadable(tmp_path):
    """It is an error of its own kind, with exit code 2."""
    with pytest.raises(UnreadableError, match="does not exist"):
        table_convert(tmp_path / "none.json", "--to", "v1.0")


def test_the_entry_point_owns_the_exit_codes(launcher, sample_tables):
    """As a process: 0 with the text, 3 with the refusal at the file's name, 2 for a missing file."""
    table = sample_tables / "rank_table_2pcs.json"
    done = launcher.run("table", "convert", table, "--to", "nodelist")
    assert (done.returncode, done.stdout) == (0, "10.0.40.11\n")
    refused = launcher.run("table", "convert", table, "--to", "v2.0")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.startswith(f"{table}: error: v2.0 cannot express this: ")
    assert launcher.run("table", "convert", "none.json", "--to", "v1.0").returncode == 2


def test_help_has_an_example():
    """Each command shows how it is used."""
    assert "tlaunch table convert rank_table.json --to v1.2" in table_convert("--help").stdout


@pytest.mark.parametrize("target", ["v1.0", "v1.2"])
def test_a_table_of_hosts_alone_is_marked_and_valid(launcher, target):
    """A hostfile has no addresses: the table says that it is for CPU or GPU, a note does too, and it is valid."""
    done = launcher.run("table", "convert", "-", "--to", target, input="node1 slots=2\nnode2 slots=2\n")
    assert "the table is for CPU or GPU" in done.stderr
    assert launcher.run("validate", "-", input=done.stdout).returncode == 0


def test_one_host_is_not_marked():
    """A single server needs no addresses, so the table may be for any hardware."""
    result = table_convert("-", "--to", "v1.0", stdin="node1 slots=2\n")
    assert "hardware_type" not in result.stdout
    assert "CPU" not in result.stderr


def test_samples_are_found_by_name(launcher):
    """As in the other commands, rank_tables/... is a sample where no such file is here."""
    done = launcher.run("table", "convert", "rank_tables/rank_table_2pcs.json", "--to", "nodelist")
    assert (done.returncode, done.stdout) == (0, "10.0.40.11\n")
    lost = launcher.run("table", "convert", "rank_table_2pcs.json", "--to", "nodelist")
    assert lost.returncode == 2
    assert "hint: did you mean rank_tables/rank_table_2pcs.json, a sample?" in lost.stderr


def test_keys_of_v1_1_mean_nothing_elsewhere(table, tmp_path):
    """They are read in v1.1 and only there, and the note says so."""
    heterogeneous = tmp_path / "heterogeneous.json"
    table_convert(table, "--to", "v1.1", "-o", heterogeneous)
    result = table_convert(heterogeneous, "--to", "v1.0")
    assert "note: left behind, since it means nothing outside v1.1: collective_id" in result.stderr
    assert "never reads it: collective_id" not in result.stderr


def test_keys_that_nobody_reads_are_named(table, tmp_path):
    """Nothing is lost without a word: each key once, and of many keys some."""
    document = json.loads(table.read_text())
    document.update({"job/name": "x", "~": 1})
    for server in document["server_list"]:
        server["rack"] = "7"
    path = tmp_path / "more.json"
    path.write_text(json.dumps(document))
    assert (
        "note: left behind, since nobody reads them: rack, job/name, ~\n" in table_convert(path, "--to", "v1.0").stderr
    )
    path.write_text(json.dumps({**document, **{f"key{number}": "" for number in range(20)}}))
    assert ", and 13 more\n" in table_convert(path, "--to", "v1.0").stderr
    assert "nobody reads" not in table_convert(table, "--to", "v1.0").stderr


def test_the_board_of_a_lab_stays_or_is_named(table, tmp_path):
    """From lab to lab it comes along; another format leaves it behind with a note, as its list of servers always is."""
    lab = tmp_path / "lab.json"
    table_convert(table, "--to", "legacy-lab", "--drop", "host_ip", "--output", lab)
    document = json.loads(lab.read_text())
    document.update({"board_id": "0x002f", "para_plane_nic_name": ["p0", "p1"], "para_plane_nic_num": "2"})
    lab.write_text(json.dumps(document))
    assert json.loads(table_convert(lab, "--to", "legacy-lab").stdout) == document
    document["group_list"][0]["server_list"] = []
    lab.write_text(json.dumps(document))
    notes = table_convert(lab, "--to", "v1.0").stderr
    assert "HCCL never reads it: board_id, para_plane_nic_name, para_plane_nic_num" in notes
    assert "note: left behind, since nobody reads them: server_list\n" in notes


@pytest.mark.parametrize("force", [True, False])
def test_a_file_made_meanwhile_is_not_replaced_unasked(table, tmp_path, force):
    """Between the first look and the writing somebody else may have taken the name."""
    output, cluster = tmp_path / "new.json", load_cluster(table)[0]
    check_output(output, force=force)
    output.write_text("precious")
    with redirect_stderr(io.StringIO()), nullcontext() if force else pytest.raises(UsageError, match="exists already"):
        hand_over("table", cluster, "v1.0", output, force=force)
    assert output.read_text() == ("table" if force else "precious")
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


def test_what_cannot_be_left_out_is_said(table):
    """A device_id is no key that --drop could leave out."""
    with pytest.raises(UsageError, match="every table needs it"):
        table_convert(table, "--to", "v1.0", "--drop", "device_id")


def test_a_text_that_is_neither_gets_the_option_that_says_what_it_is():
    """Words that may be hosts or not are not guessed at: the way to say so is named."""
    result = table_convert("-", "--to", "hostfile", stdin="hello\n")
    assert "--from hostfile" in result.stderr


def test_the_order_in_which_slurm_sorts_hosts_is_noted(tmp_path):
    """Srun sorts a node list, so a table in another order says what keeps its order."""
    hosts = tmp_path / "hosts"
    hosts.write_text("node10 slots=1\nnode9 slots=1\n")
    result = table_convert(hosts, "--from", "hostfile", "--to", "nodelist")
    assert "SLURM_HOSTFILE" in result.stderr
