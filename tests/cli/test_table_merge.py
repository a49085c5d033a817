"""`tlaunch table merge` as a person types it."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest
from click import BadParameter

from launcher.cli.commands.table.merge import merge
from launcher.core.errors import RefusedTableError, UnreadableError, UsageError
from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import load_cluster, render_table


def table_merge(*arguments):
    """In this process, with a stdout that has a descriptor, as a command's has."""
    with tempfile.TemporaryFile("w+") as stdout, redirect_stdout(stdout), redirect_stderr(io.StringIO()) as stderr:
        value = merge.main([str(argument) for argument in arguments], standalone_mode=False)
        stdout.seek(0)
        return SimpleNamespace(stdout=stdout.read(), stderr=stderr.getvalue(), return_value=value)


@pytest.fixture
def tables(tmp_path):
    """Tables of one server each, called like its number."""

    def write(*numbers):
        for number in numbers:
            devices = (Device(0, 0, f"192.0.0.{number}"), Device(1, 1, f"192.1.0.{number}"))
            text = render_table(Cluster((Server(f"10.0.0.{number}", devices),)))
            (tmp_path / f"host{number}.json").write_text(text)
        return [tmp_path / f"host{number}.json" for number in numbers]

    return write


def test_servers_are_joined(tables, tmp_path):
    """The merged table is valid, has the ranks in the order of the files, and is written once."""
    output = tmp_path / "all.json"
    result = table_merge(*tables(1, 2), "--output", output)
    assert result.stdout == ""
    assert f"wrote {output}: v1.0, 2 servers, 4 devices" in result.stderr
    cluster, warnings = load_cluster(output)
    assert warnings == ()
    assert [server.server_id for server in cluster.servers] == ["10.0.0.1", "10.0.0.2"]
    with pytest.raises(UsageError, match="exists already"):
        table_merge(*tables(1, 2), "--output", output)


def test_the_order_of_a_shell_is_noted(tables):
    """host10 before host2 is the order of the shell and of the text; by hand host2 comes first, and is not the text's."""
    result = table_merge(*tables(2, 10))
    assert [server["server_id"] for server in json.loads(result.stdout)["server_list"]] == ["10.0.0.2", "10.0.0.10"]
    assert "note: ranks follow the order of the files: '10.0.0.2' comes before '10.0.0.10'" in result.stderr
    assert "note" not in table_merge(*tables(1, 2)).stderr


def test_faulty_tables_show_all_their_problems(tables, tmp_path):
    """Every file is read before giving up, and nothing is written."""
    broken = [tmp_path / f"broken{number}.json" for number in (1, 2)]
    for path in broken:
        path.write_text("{")
    result = table_merge(*tables(1), *broken)
    assert result.return_value == 1
    assert result.stdout == ""
    assert all(f"{path}:1:" in result.stderr for path in broken)


def test_the_same_server_twice_is_refused(tables):
    """Both files are named, with their lines."""
    first = tables(1)[0]
    again = first.with_name("copy.json")
    again.write_text(first.read_text())
    with pytest.raises(RefusedTableError, match=r"copy\.json:6: error: server_id '10\.0\.0\.1' is in .*host1\.json:6"):
        table_merge(first, again)


def test_chip_decides_what_is_checked(tmp_path):
    """Servers without addresses are no cluster for HCCL, and one of GPUs."""
    paths = []
    for name in "ab":
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(render_table(Cluster((Server(name, (Device(0, 0),)),))))
    with pytest.raises(RefusedTableError, match="RT333"):
        table_merge(*paths)
    assert json.loads(table_merge("--chip", "none", *paths).stdout)["server_count"] == "2"
    with pytest.raises(BadParameter, match="abacus"):
        table_merge("--chip", "abacus", *paths)


def test_the_entry_point_owns_the_exit_codes(launcher, tables):
    """As a process: 0, 3 for a server in two files, 2 for a missing file and for none at all."""
    one, two = tables(1, 2)
    assert launcher.run("table", "merge", one, two).returncode == 0
    assert launcher.run("table", "merge", one, one).returncode == 3
    assert launcher.run("table", "merge", one, "none.json").returncode == 2
    assert launcher.run("table", "merge").returncode == 2


def test_a_missing_file_is_unreadable(tables, tmp_path):
    """It is an error of its own kind."""
    with pytest.raises(UnreadableError, match="does not exist"):
        table_merge(*tables(1), tmp_path / "none.json")


def test_tables_for_gpus_are_marked_and_valid_for_everybody(launcher):
    """With --chip none the result says that it needs no addresses, so HCCL's opinion is not asked, here or later."""
    for name in "ab":
        (launcher.directory / f"{name}.json").write_text(render_table(Cluster((Server(name, (Device(0, 0),)),))))
    done = launcher.run("table", "merge", "--chip", "none", "a.json", "b.json", "-o", "both.json")
    assert "HCCL would refuse" not in done.stderr
    assert 'note: no device has a device_ip, so the servers are marked as hardware_type "cpu"' in done.stderr
    assert launcher.run("validate", "both.json").returncode == 0


def test_problems_of_the_result_name_the_merged_table(tmp_path):
    """There is no file that they stand in; the hint says what merges tables without addresses."""
    paths = [tmp_path / f"{name}.json" for name in "ab"]
    for path in paths:
        path.write_text(render_table(Cluster((Server(path.stem, (Device(0, 0),)),))))
    with pytest.raises(RefusedTableError) as caught:
        table_merge(*paths)
    assert caught.value.message.startswith("the merged table:")
    assert "merged.json" not in caught.value.message
    assert "--chip none merges them" in caught.value.hint


def test_a_loopback_name_has_a_hint_of_its_own(tables, tmp_path):
    """It is not a matter of giving a table twice."""
    local = tmp_path / "local.json"
    local.write_text(render_table(Cluster((Server("127.0.1.1", (Device(0, 0, "192.9.9.9"),)),))))
    with pytest.raises(RefusedTableError) as caught:
        table_merge(*tables(1), local)
    assert caught.value.hint == "generate it again with --server-id and the address that the others use"


def test_keys_that_nobody_reads_are_named(tables):
    """Of all files together, each key once."""
    paths = tables(1, 2)
    for path, key in zip(paths, ("job", "rack"), strict=True):
        path.write_text(path.read_text().replace("{", f'{{"my": "", "{key}": "x",', 1))
    assert "note: left behind, since nobody reads them: my, job, rack\n" in table_merge(*paths).stderr
