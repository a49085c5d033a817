"""`tlaunch run -q` and `-v`."""

import sys

import pytest

FAILS = (sys.executable, "-c", "print('begun'); raise SystemExit(7)")


def test_a_quiet_run_that_ends_well_says_nothing(launcher):
    done = launcher.run("run", "-q", "--", "echo", "hello", code=0)
    assert (done.stdout, done.stderr) == ("", "")
    assert (launcher.latest / "device0" / "train.log").read_text() == "hello\n"
    done = launcher.run("run", "--quiet", "--detach", "--", "true", code=0)
    assert (done.stdout, done.stderr) == (f"{launcher.latest.readlink()}\n", "")
    assert launcher.call("wait", code=0).returncode == 0
    assert launcher.call("run", "-q", "--dry-run", "--", "true", code=0).stderr == ""


def test_a_quiet_run_that_fails_says_why(launcher):
    done = launcher.run("run", "-q", "-n", 1, "--max-restarts", 1, "--", *FAILS, code=7)
    assert done.stdout == ""
    told = [line.split(",")[0] for line in done.stderr.splitlines() if "exit code 7" in line]
    assert told == ["rank 0: exit code 7", "error: rank 0: exit code 7"]
    assert launcher.call("run", "-q", "--", "no-such-program", code=2).stderr.startswith("error: ")
    shown = launcher.run("run", "-q", "-n", 2, "--console", "all", "--", "echo", "hello", code=0).stdout
    assert shown.count("hello") == 2


@pytest.mark.parametrize(("typed", "expected"), [
    (["-n", 2, "--", sys.executable, "-c", "import json"], {"preloading": "json (detected", "layout": "dp=2", "rendezvous": "127.0.0.1:"}),
    (["-n", 2, "--no-preload", "--", sys.executable, "-c", "1"], {"preloading": "none (--no-preload)"}),
    (["--max-restarts", 3, "--hang-timeout", "10m", "--", "true"], {"preloading": "none: ", "failures": "at most 3 restarts, hung after 600 s"}),
    (["-n", 1, "--", "echo", "--password", "hunter2"], {"program": "******"}),
])  # fmt: skip
def test_a_verbose_run_says_what_was_decided(launcher, typed, expected):
    launcher.write("tlaunch.toml", "[run]\ngrace = 3\n")
    for done in (launcher.run("run", "-v", *typed, code=0), launcher.call("run", "-v", "--dry-run", *typed, code=0)):
        told = {line.partition(" ")[0].partition(":")[0]: line for line in done.stderr.splitlines()}
        assert "--grace=3" in told["from"]
        assert {"devices", "layout", "program", "preloading", "cores", "failures", "run"} <= set(told)
        assert all(words in told[what] for what, words in expected.items()), told
        assert "hunter2" not in done.stderr


def test_the_other_one_can_be_asked_for_where_a_file_has_one(launcher):
    launcher.write("tlaunch.toml", "[run]\nquiet = true\n")
    assert "preloading: " in launcher.call("run", "-v", "--dry-run", "--", "true", code=0).stderr
    launcher.write("tlaunch.toml", "[run]\nverbose = true\nconsole = 'all'\n")
    done = launcher.run("run", "-q", "--", "echo", "hello", code=0)
    assert (done.stdout, done.stderr) == ("", "")
    assert launcher.call("--no-config", "run", "-q", "-v", "--", "true").returncode == 2


def test_short_options_are_those_of_long_names(launcher, sample_tables):
    table = sample_tables / "rank_table_2pcs.json"
    short = launcher.call("run", "-v", "-t", table, "-e", "A=1", "--dry-run", "--", "true", code=0)
    assert " A=1 " in short.stdout
    assert str(table) in short.stderr
    assert launcher.run("run", "-d", "-n", 1, "--", "true", code=0).stdout == f"{launcher.latest.readlink()}\n"
    assert launcher.call("wait", code=0).returncode == 0
