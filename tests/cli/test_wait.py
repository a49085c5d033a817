"""`tlaunch wait` and `tlaunch completion`."""

import os
import sys

import pytest

from launcher.runs.registry import register


def asked(words):
    """The environment in which a shell asks what completes this line."""
    return {"_TLAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


def test_the_exit_code_of_a_run_is_waited_for(launcher, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    launcher.call("run", "--devices", 1, "--detach", "--", "sh", "-c", f"read line < {gate}; exit 7", code=0)
    assert launcher.call("wait", "--timeout", "10ms").returncode == 124
    waiting = launcher.start("wait")
    gate.write_text("go\n")  # as soon as the rank reads
    assert waiting.wait() == 7
    assert launcher.call("wait", "latest").returncode == 7
    assert launcher.call("wait", "no-such-run").returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(launcher, shell):
    script = launcher.call("completion", shell, code=0).stdout
    assert "_TLAUNCH_COMPLETE" in script
    assert launcher.call("completion", "csh").returncode == 2


@pytest.mark.parametrize(("words", "completed"), [
    ("tlaunch stat", ["status"]), ("tlaunch run --consol", ["--console"]), ("tlaunch run --console rank", ["rank0"]),
    ("tlaunch render kuber", ["kubernetes"]),
    ("tlaunch status 2026", ["20261121-053713-b", "20261121-053712-a"]),
    ("tlaunch report latest b", ["b"]), ("tlaunch logs -f b", ["b"]), ("tlaunch status lat", ["latest"]),
    ("tlaunch stop 2026", ["20261121-053713-b"]),  # the other is over
    ("tlaunch ckpt ls 20261121-053713", ["20261121-053713-b"]),
    ("tlaunch run --resume a", ["a"]), ("tlaunch run --recipe res", ["resnet50"]),
    ("tlaunch table explain rt30", ["RT301", "RT302"]),
    ("tlaunch table explain ei0014", ["EI0014"]),
    ("tlaunch table convert x --to v1.", ["v1.0", "v1.2"]),
    ("tlaunch table convert x --from v1.", ["v1.0", "v1.1", "v1.2"]),
    ("tlaunch table convert x --from rank", ["rankfile"]),
    ("tlaunch logs --level e", ["ERROR"]), ("tlaunch logs --rank f", ["failed"]),
    ("tlaunch prune --state fa", ["failed"]),
])  # fmt: skip
def test_what_begins_so_is_completed(launcher, words, completed):
    for name in ("20261121-053712-a", "20261121-053713-b"):
        run = launcher.runs / name
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
    (launcher.runs / "20261121-053712-a" / "report.json").write_text("{}")
    done = launcher.call(env=asked(words))
    assert done.stdout.split() == [f"plain,{word}" for word in completed]


@pytest.mark.parametrize("words", ["stop ", "status ", "logs ", "ckpt ls ", "run --resume "])
def test_a_run_called_like_an_option_is_not_completed(launcher, words):
    """By a directory's name, or by what was given by --name: the shell would put an option into the line."""
    for name in ("--kill", "20261121-053712--x", "-q", "20261121-053713-b"):
        launcher.write(f"runs/{name}/run.json", "{}")
    done = launcher.call(env=asked(f"tlaunch {words}"))
    assert done.stdout.split() == ["plain,20261121-053713-b", "plain,20261121-053712--x"]


@pytest.mark.parametrize(("words", "env", "completed"), [
    ("tlaunch status 2026", {}, ["20260101-000000-a"]),
    ("tlaunch status --runs-dir runs 2026", {}, []),
    ("tlaunch status 2026", {"TLAUNCH_RUNS_DIR": "runs"}, []),
    ("tlaunch status 2026", {"TLAUNCH_RUNS_DIR": ""}, ["20260101-000000-a"]),
])  # fmt: skip
def test_runs_elsewhere_are_completed_where_a_command_finds_them(launcher, monkeypatch, words, env, completed):
    monkeypatch.setenv("XDG_STATE_HOME", str(launcher.directory / "state"))
    launcher.write("others/20260101-000000-a/run.json", "{}")
    register(launcher.directory / "others")
    done = launcher.call(env={"XDG_STATE_HOME": str(launcher.directory / "state"), **env, **asked(words)})
    assert done.stdout.split() == [f"plain,{word}" for word in completed]


def test_what_is_completed_imports_little(launcher):
    """Neither what checks options and tables thoroughly, nor what draws."""
    (launcher.runs / "x-run").mkdir(parents=True)
    launcher.write("runs/x-run/run.json", "{}")
    for words, expected in (
        ("table explain RT3", "RT301"),
        ("table convert x --to v", "v1.0"),
        ("run --recipe t", "transformer"),
        ("status x", "x-run"),
        ("logs --level e", "ERROR"),
    ):
        slow = "import atexit, sys; atexit.register(lambda: print(sorted({'pydantic', 'rich', 'torch', 'jinja2'} & set(sys.modules))))"
        done = launcher.ended(
            [sys.executable, "-c", f"{slow}; from launcher.cli.main import main; sys.exit(main())"],
            env=asked(f"tlaunch {words}"),
        )
        *completed, imported = done.stdout.splitlines()
        assert f"plain,{expected}" in completed, words
        assert imported == "[]", words


@pytest.mark.parametrize("words", [
    "run -n 2 -- python tr", "ckpt show tr", "run --config tr", "run tr", "exec -- tr", "validate tr", "table fix tr",
    "table diff a tr",
])  # fmt: skip
def test_files_are_left_to_the_shell(launcher, words):
    assert launcher.call(env=asked(f"tlaunch {words}")).stdout == "file,tr\n"
