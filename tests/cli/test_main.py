"""The table of commands, lazy imports, and how errors reach a person."""

import importlib
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.cli.commands.ckpt import COMMANDS as CKPT_COMMANDS
from launcher.cli.commands.table import COMMANDS as TABLE_COMMANDS
from launcher.cli.options import command_types
from launcher.cli.options.run import RARE, RUN_PARAMETERS
from launcher.core.errors import RefusedLayoutError
from launcher.core.events import AgentEnded, AgentStarted, Cause, RankEnded
from launcher.core.machine.proc import identify
from tests.programs import acted_run

from .transcript import typed_lines

COMMANDS = [
    (f"{command_types.COMMANDS}{target}", short_help)
    for commands in cli.SECTIONS.values()
    for target, short_help in commands.values()
]
HEAVY = ("torch", "numpy", "pydantic", "rich", "psutil")
# Neither a reader of tables, nor what several servers ask each other, nor what looks at ranks that hang or at taken ports.
OF_SERVERS = ("launcher.control.messages", "launcher.supervise.stack_collection")


# One of each kind of end: what goes well, and what does not.
SMOKE = """
--version; rnu; validate t.json; table fix no.json; render bash --devices 2 -- true; logs a; report a
run --dry-run --devices 2 --master-port 29876 -- true
"""


@pytest.mark.parametrize("typed", typed_lines(SMOKE))
def test_a_process_of_its_own_says_the_same(launcher, sample_tables, typed):
    """What other tests see of commands in this process, from start to exit code."""
    launcher.write("t.json", (sample_tables / "rank_table_2pcs.json").read_text())
    ended = [AgentStarted(identify(1), None, 2), RankEnded(0, 9, 3), AgentEnded(Cause.FAILED, 3)]
    acted_run.make(launcher.runs / "a", ended).train_log(0).write_text("said\n")
    told = [launcher.transcript(start(*typed.split())) for start in (launcher.run, launcher.call)]
    first, second = (" ".join(re.sub(r"\d+(\.\d+)? (ms|s|min)\b", "<age>", text).split()) for text in told)
    assert first == second


RUN_TRAINER = "run --rank-table rank_tables/rank_table_8pcs.json --mp 2 --pp 2 --dry-run"
MODULES_AFTER = """
import json, sys
from launcher.cli.main import main
try: main(sys.argv[1:])
except SystemExit as end: assert end.code == 0, end.code
json.dump(sorted(sys.modules), sys.stderr)
"""


@pytest.mark.parametrize(("typed", "unwanted"), [
    ("--help", {*HEAVY, *(target.partition(":")[0] for target, _ in COMMANDS)}),
    ("table --help", {*HEAVY, "launcher.rank_table", *(name.partition(":")[0] for name, _ in TABLE_COMMANDS.values())}),
    ("ckpt --help", {*HEAVY, "launcher.checkpoint", *(name.partition(":")[0] for name, _ in CKPT_COMMANDS.values())}),
    ("run --help", HEAVY),
    ("data preprocess --help", {*HEAVY, "launcher.corpus"}),
    (RUN_TRAINER, {"torch", "numpy", "psutil", "launcher.trainer"}),
    ("run --devices 2 -- true", {*HEAVY, *OF_SERVERS}),
], ids=["help", "table help", "ckpt help", "run help", "data help", "dry run", "run"])  # fmt: skip
def test_nothing_is_imported_that_is_not_needed(launcher, typed, unwanted):
    done = launcher.python(MODULES_AFTER, *typed.split())
    assert done.returncode == 0, done.stderr
    assert not set(json.loads(done.stderr.splitlines()[-1])) & set(unwanted)


@pytest.mark.parametrize(("target", "short_help"), [*COMMANDS, *TABLE_COMMANDS.values(), *CKPT_COMMANDS.values()])
def test_table_says_what_the_command_says(target, short_help):
    module, _, attribute = target.partition(":")
    assert getattr(importlib.import_module(module), attribute).get_short_help_str(200) == short_help


def test_exit_codes_are_in_both_helps(launcher):
    for arguments in (["--help"], ["run", "--help"]):
        text = launcher.call(*arguments).stdout.lower()
        assert "exit codes" in text
        for code in ("126", "127", "129", "130", "143", "128 +"):
            assert code in text


def raising(error):
    command = cli.click.Command("x", callback=lambda: (_ for _ in ()).throw(error))
    return lambda: command.main([], prog_name="tlaunch", standalone_mode=False)


@pytest.mark.parametrize(("work", "code", "told"), [
    (raising(RefusedLayoutError("too many", hint="fewer")), 3, "error: too many\nhint: fewer\n"),
    (Path("/nonexistent/file").read_text, 1, "error: /nonexistent/file: No such file or directory\n"),
    # Without a file's name, and of a command that wrote nothing: stdout is not blamed.
    (raising(OSError(28, "No space left on device")), 1, "error: No space left on device\n"),
], ids=["refused", "of a file", "of no file"])  # fmt: skip
def test_errors_go_to_stderr_with_their_exit_code(capsys, work, code, told):
    assert cli._exit_code_of(work) == code
    assert capsys.readouterr().err == told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("typed", "unbuffered"), [("table diff t.json t.json", ""), ("table fix - --write", "1"), ("-h", "")]
)
def test_a_stdout_that_takes_nothing_is_unwritable(launcher, sample_tables, typed, unbuffered):
    """2 as for any file that cannot be written: 1 would mean that tables differ or have errors."""
    table = (sample_tables / "rank_table_2pcs.json").read_text()
    launcher.write("t.json", table)
    with Path("/dev/full").open("wb") as full:
        done = launcher.run(*typed.split(), input=table, stdout=full, env={"PYTHONUNBUFFERED": unbuffered})
        called = launcher.call(*typed.split(), input=table, stdout=full)
    assert (done.returncode, called.returncode) == (2, 2)
    assert "error: stdout cannot be written: " in done.stderr
    assert done.stderr == called.stderr


@pytest.mark.parametrize("arguments", [("validate", "a\x1b[2J"), ("validate", "--a\x1b[2J")])
def test_errors_move_no_cursor(launcher, arguments):
    done = launcher.call(*arguments, code=2)
    assert "\x1b" not in done.stderr
    assert "[2J" in done.stderr


STOPS_AT_FSYNC = """\
import os, pathlib, time
def stop(descriptor):
    pathlib.Path("reached").touch()
    while True:
        time.sleep(0.01)
os.fsync = stop
"""


@pytest.mark.parametrize(
    ("typed", "number", "code"),
    [("convert t.json --to v1.2 --output new.json", signal.SIGTERM, 143), ("fix t.json --write", signal.SIGHUP, 129)],
)
def test_a_command_that_is_asked_to_end_cleans_up(launcher, wait_until, sample_tables, typed, number, code):  # noqa: PLR0917
    directory = launcher.directory
    code_dir = launcher.write("code/sitecustomize.py", STOPS_AT_FSYNC).parent
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace('"server_count": "1"', '"server_count": "+1"')
    launcher.write("t.json", text)
    process = launcher.start("table", *typed.split(), env={"PYTHONPATH": str(code_dir)})
    wait_until((directory / "reached").exists, "the file aside")
    assert list(directory.glob(".*.partial"))
    process.send_signal(number)
    assert process.wait(60) == code
    assert not list(directory.glob(".*.partial"))
    assert not (directory / "new.json").exists()
    assert (directory / "t.json").read_text() == text


ENDED_WHILE_A_CLASS_IS_MADE = """
import functools, os, signal

def made(self, owner, name):
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.{})
    usual(self, owner, name)

usual, functools.cached_property.__set_name__ = functools.cached_property.__set_name__, made
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_while_modules_are_imported_ends_it_quietly(launcher, name, code):
    (launcher.directory / "sitecustomize.py").write_text(ENDED_WHILE_A_CLASS_IS_MADE.format(name))
    done = launcher.run("table", "fix", "t.json", env={"PYTHONPATH": str(launcher.directory)})
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_hangup_that_is_ignored_stays_ignored(launcher, wait_until):
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *launcher.argv("table", "fix", "-", "--write")]
    process = launcher.begin(ignoring, stdin=subprocess.PIPE)
    caught = Path(f"/proc/{process.pid}/status")
    wait_until(lambda: _has(caught.read_text(), "SigCgt", signal.SIGTERM), "the handler")
    assert _has(caught.read_text(), "SigIgn", signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


def _has(status, field, number):
    masks = dict(line.split(":", 1) for line in status.splitlines())
    return bool(int(masks[field], 16) >> (number - 1) & 1)


HELP = """;run;ps;status;top;logs;why;stacks;stop;explain;validate;table;table show;table diff;table convert;table explain
table fix;table generate;table merge;data;data preprocess;data sample"""


@pytest.mark.parametrize("command", HELP.replace("\n", ";").split(";"))
def test_help_fits_a_terminal(launcher, command):
    done = launcher.call(*command.split(), "--help", env={"COLUMNS": "80"}, code=0)
    assert [line for line in done.stdout.splitlines() if len(line) > 80 or re.search(r"[<>]=?x|x[<>]", line)] == []


@pytest.mark.parametrize("command", ["run", "rerun", "explain", "render"])
def test_rare_options_are_in_help_all_and_completed(launcher, command):
    short, full = (launcher.call(command, option, code=0).stdout for option in ("--help", "--help-all"))
    [shown, all_options] = [set(re.findall(r"^  (?:-.*?, )?(--[a-z-]+)", text, re.MULTILINE)) for text in (short, full)]
    words = {"COMP_WORDS": f"tlaunch {command} --", "COMP_CWORD": "2", "_TLAUNCH_COMPLETE": "bash_complete"}
    completed = launcher.call(env=words, code=0).stdout
    rare = {"--chip", "--max-table-size", "--profile"}
    assert (rare <= all_options, rare & shown, shown < all_options) == (True, set(), True)
    assert {name for name in rare if f"plain,{name}\n" in completed} == rare


def test_every_rare_option_is_one_of_run():
    assert {option.name for option in RUN_PARAMETERS} >= RARE


def test_an_interrupt_during_imports_is_no_error(launcher, wait_until):
    launcher.write("click.py", "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(1000)\n")
    process = launcher.start("ps", stderr=subprocess.PIPE)
    wait_until((launcher.directory / "importing").exists, "an import")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (-signal.SIGINT, b"")


def test_a_program_that_imports_the_command_keeps_its_interrupts(launcher):
    """Ctrl-C raises KeyboardInterrupt again once all is imported; what was ignored stays so."""
    script = "import launcher.cli.main as _, signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler)"
    for former, words in ((signal.default_int_handler, "True\n"), (signal.SIG_IGN, "False\n")):
        start = lambda former=former: signal.signal(signal.SIGINT, former)  # noqa: E731
        assert launcher.python(script, preexec_fn=start).stdout == words
