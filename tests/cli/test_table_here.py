"""What is worth a word before ranks start: a table of another machine, and a packaged file in place of a missing one."""

import json
import os
import shutil

import psutil
import pytest

WARNED = "--server "  # which says that the table is meant
NOWHERE = "192.0.2.77"  # an address of documentation: no machine has it
SAMPLE = "rank_tables/rank_table_2pcs.json"
RECIPE = "recipes/transformer/tutorial.toml"


def own_address():
    addresses = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == 2]
    return next((address for address in addresses if not address.startswith("127.")), None)


@pytest.mark.parametrize("more", [[], ["--dry-run", "--json"]], ids=" ".join)
def test_a_run_warns_of_the_table_of_another_machine(launcher, table_of, more):
    start = launcher.call if more else launcher.run
    done = start("run", "--rank-table", table_of({NOWHERE: [0, 1]}), *more, "--", "true")
    assert (done.returncode, WARNED in done.stdout) == (0, False)
    assert f"warning: server {NOWHERE} " in done.stderr
    assert f"{WARNED}{NOWHERE}" in done.stderr


@pytest.mark.parametrize("name", [os.uname().nodename, "localhost", "127.0.0.1", "10.*.*.1", own_address() or "::1"])
def test_no_run_warns_of_a_table_of_this_machine_or_of_none(launcher, table_of, name):
    done = launcher.call("run", "--rank-table", table_of({name: [0]}), "--dry-run", "--", "true")
    assert (done.returncode, WARNED in done.stderr) == (0, False), done.stderr


def test_no_run_warns_where_somebody_says_which_server_this_is(launcher, table_of):
    run = ["run", "--rank-table", table_of({NOWHERE: [0]}), "--dry-run"]
    assert WARNED not in launcher.call(*run, "--server", NOWHERE, "--", "true").stderr
    assert WARNED not in launcher.call(*run, "--", "true", env={"TLAUNCH_SERVER": NOWHERE}).stderr
    assert WARNED in launcher.call(*run, "--", "true", env={"TLAUNCH_SERVER": "h7"}).stderr


def test_no_run_warns_of_a_sample_wherever_it_lies(launcher, sample_tables):
    name = "rank_table_2pcs.json"
    copy = launcher.directory / name
    shutil.copy(sample_tables / name, copy)
    for table in (f"rank_tables/{name}", sample_tables / name, copy):
        assert WARNED not in launcher.call("run", "--rank-table", table, "--dry-run", "--", "true").stderr
    copy.write_text(copy.read_text().replace("10.0.40.11", NOWHERE))
    assert WARNED in launcher.call("run", "--rank-table", copy, "--dry-run", "--", "true").stderr


def test_the_doctor_tells_it_as_a_risk(launcher, table_of):
    done = launcher.run("doctor", "--no-links", "--json", "--rank-table", table_of({NOWHERE: [0, 1]}))
    told = json.loads(done.stdout)
    (finding,) = [one for one in told["findings"] if one["code"] == "server-unknown"]
    assert (done.returncode, told["sound"], finding["severity"], finding["topic"]) == (0, True, "risky", "table")
    assert f"server {NOWHERE} " in finding["message"]
    done = launcher.run("doctor", "--rank-table", SAMPLE, "--no-links")  # a sample is not doubted
    assert (done.returncode, done.stderr.count(f"note: {SAMPLE} not found")) == (0, 1)
    assert WARNED not in done.stdout + done.stderr


WITH_TABLE = [
    f"run --rank-table {SAMPLE} --dry-run -- true",
    f"run --rank-table {SAMPLE} --dry-run --json -- true",
    f"explain --rank-table {SAMPLE} -- true",
    f"render bash --rank-table {SAMPLE} -- true",
    f"validate {SAMPLE}",
    f"validate -q --json {SAMPLE}",
    f"table show {SAMPLE}",
    f"table fix {SAMPLE}",
    f"table merge {SAMPLE}",
    f"table convert {SAMPLE} --to v1.2",
]


@pytest.mark.parametrize("typed", WITH_TABLE)
def test_a_sample_that_stands_in_for_a_missing_table_is_told(launcher, sample_tables, typed):
    note = f"note: {SAMPLE} not found; using the packaged sample {sample_tables / 'rank_table_2pcs.json'}\n"
    done = launcher.call(*typed.split(), code=0)
    assert (done.stderr.count(note), done.stderr.count("note: rank_tables")) == (1, 1)
    assert "not found" not in done.stdout
    shutil.copytree(sample_tables, launcher.directory / "rank_tables")
    assert "not found" not in launcher.call(*typed.split()).stderr


def test_all_packaged_files_that_stand_in_for_missing_ones_are_told(launcher):
    done = launcher.call("table", "diff", SAMPLE, "rank_tables/rank_table_4pcs.json", code=1)
    assert done.stderr.count("not found; using the packaged sample ") == 2
    run = ["run", "--devices", "1", "--dry-run", "--config"]
    told = launcher.call(*run, "tutorial.toml", code=0)
    assert told.stderr.count("note: tutorial.toml not found; using the packaged recipe ") == 1
    assert f" --config {RECIPE}" in told.stdout
    assert "not found" not in launcher.call(*run, RECIPE, code=0).stderr
    launcher.write("tutorial.toml")
    assert "not found" not in launcher.call(*run, "tutorial.toml", code=0).stderr
