"""What a person sees in a real terminal, 80 or 200 columns wide, and that it is as before afterwards."""

import os
import re
import shutil
import subprocess
import sys
import termios
import time
from itertools import cycle

import pytest

from launcher.cli.text.log_format import MARK
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
WIDTHS = (80, 200)
HISTORY_LINES = 20_000
TIME = r"\d+(\.\d s| s| min( \d+ s)?)"  # as the row tells it, however slow the machine is
# All ranks begin together; else, on a busy machine, most say their first lines later than they are waited for.
TOGETHER = """
import os, time
open("begun" + os.environ["RANK"], "w").close()
while not all(os.path.exists(f"begun{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))): time.sleep(0.01)
"""
STATE = (
    "#{alternate_on} #{cursor_flag} #{insert_flag} #{keypad_flag} #{keypad_cursor_flag} #{wrap_flag} #{origin_flag} "
    "#{mouse_any_flag} #{scroll_region_upper} #{pane_title}"
)
HOSTILE = r"""
rank = int(os.environ["RANK"])
def say(line):
    os.write(1, line + b"\n")
for step in range(4):
    say(b"step %d loss %.3f" % (step, 9 - step + rank / 100))
    time.sleep(0.1)
if rank == 3:
    say(b"retrying")
say(b"10%\r20%\r100% done")
say(b"\x1b[31mred\x1b[0m plain")
say(b"\x1b[2J\x1b[H\x1b]0;OTHER TITLE\x07cleared")
say(b"\x1b[?1049h\x1b[?25l\x1b[5;10r\x1b[?7l\x1b[4h\x1b[?1h\x1b[?1000hmodes")
say(b"\x0e\x1bc\x1b=\x9b2J reset")
say(b"a\0b \xff\xfe invalid")
say("\u6f22\u5b57 \U0001f600 wide".encode() * 12)
say(b"\x1b[1;44mnever ended")
if rank == 0:
    say(b"L" * (1 << 20))
    say(bytes(sorted(set(range(256)) - {10, 13})))
say(b"end")
"""
MOST = [
    *["100% done", "red plain", "cleared", "modes", "^N^[c^[=\ufffd2J reset", "a^@b \ufffd\ufffd invalid"],
    *["\u6f22\u5b57 \U0001f600 wide" * 12, "never ended"],
]
GARBAGE = re.compile(r"\^@\^A.*\^\?\ufffd+")
WAIT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
GOES_ON = 'import time\nfor n in range(10**9):\n    print("line", n, flush=True)\n    time.sleep(0.02)'


def in_turn(name, *values):
    return pytest.mark.parametrize((name, "columns"), list(zip(values, cycle(WIDTHS), strict=False)), ids=str)


class Screen:
    def __init__(self, launcher, columns):
        self._launcher = launcher
        launcher.write("tlaunch", f'#!/bin/sh\nexec "{sys.executable}" -m launcher "$@"\n').chmod(0o755)
        variables = {"LC_ALL": "C.UTF-8", "PS1": "> ", "TMUX": "", "SHELL": "/bin/sh", "ENV": ""}
        self._environment = launcher.environment(variables)
        self._environment["PATH"] = f"{launcher.directory}{os.pathsep}{self._environment['PATH']}"
        size = ["-x", str(columns), "-y", "24"]
        limit = ["set-option", "-g", "history-limit", str(HISTORY_LINES)]
        self._tmux("-f", os.devnull, "start-server", ";", *limit, ";", "new-session", "-d", *size, "sh")
        self.wait_for(">")
        self._before = self._settings()

    def _tmux(self, *arguments):
        done = subprocess.run(
            ["tmux", "-u", "-S", "tmux.socket", *arguments],  # relative: a socket's path must be short
            cwd=self._launcher.directory, env=self._environment, capture_output=True, encoding="utf-8", timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def type(self, command):
        self._tmux("send-keys", "-l", f"clear; {command}; echo code=$?")
        self._tmux("send-keys", "Enter")

    def press(self, key):
        self._tmux("send-keys", key)

    def resize(self, columns, rows):
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def touch(self, *names):
        for name in names:
            self._launcher.write(name)

    def rows(self):
        return [row.rstrip() for row in self._tmux("capture-pane", "-p").splitlines()]

    def lines(self):
        """Everything since the screen was last cleared, as it was written, however often it was wrapped."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p", "-J", "-S", "-").splitlines()]

    def wait_for(self, pattern):
        return self.wait_until(lambda: [line for line in self.lines() if re.match(pattern, line)], pattern)[-1]

    def wait_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, (what, self.rows())
            time.sleep(0.1)
        return found

    def ended(self):
        code = self.wait_for(r"code=\d").removeprefix("code=")
        self.wait_until(lambda: [row for row in self.rows() if row][-1:] == [">"], "a prompt")
        last = [row for row in self.rows() if row][-2:]
        assert last == [f"code={code}", ">"] or (last[-1] == ">" and f"code={code}" in last[0]), self.rows()
        assert self._settings() == self._before
        return int(code)

    def _settings(self):
        pane = self._tmux("display-message", "-p", "#{pane_tty}").strip()
        terminal = os.open(pane, os.O_RDWR | os.O_NOCTTY)
        try:
            return termios.tcgetattr(terminal), self._tmux("display-message", "-p", STATE)
        finally:
            os.close(terminal)

    def close(self):
        self._tmux("kill-server")


@pytest.fixture
def play(launcher):
    opened = []

    def start(program, columns, command):
        launcher.write("program.py", f"{TOGETHER}{program}")
        opened.append(Screen(launcher, columns))
        opened[-1].type(command)
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def loss_of(line, step):
    return int(re.fullmatch(rf"step {step} loss (\d)\.0\d\d(\.\.\1\.0\d\d)?", line)[1])


def check_long_lines(lines):
    """Those of rank 0, which are taken away: one megabyte is cut once, with a mark; rubbish is harmless."""
    [cut] = [line for line in lines if "LLL" in line]
    [garbage] = [line for line in lines if GARBAGE.search(line)]
    lines.remove(cut)
    lines.remove(garbage)
    assert cut.endswith(f"L{MARK}")
    assert len(cut) < 1000


# --- whatever logs hold ---


@in_turn("command", "run --console all", "logs -f --collapse", "run")
def test_every_line_of_every_rank_is_whole(launcher, play, columns, command):
    terminal = play(HOSTILE, columns, commands(command))
    assert terminal.ended() == 0
    lines = terminal.lines()
    is_collapsed, ranks = "collapse" in command, [0] if command == "run" else range(4)
    check_long_lines(lines)
    for rank in ranks:
        steps = [f"step {step} loss {9 - step + rank / 100:.3f}" for step in range(4)]
        last = [*(["retrying"] if rank == 3 else []), *MOST, "end"]
        said = [line for line in lines if line in steps + last] if command == "run" else launcher.said_by(rank, lines)
        if is_collapsed:
            assert [loss_of(line, step) for step, line in enumerate(said[:4])] == [9 - step for step in range(4)]
        assert said[4 if is_collapsed else 0 :] == (last if is_collapsed else steps + last)
    assert not is_collapsed or any(re.match(r"\[\d+[-,]", line) for line in lines)
    assert not is_collapsed or "[3] retrying" in lines
    # Some ranks may say it later than they are waited for.
    check_rest(lines, command, len(ranks) * (4 + len(MOST) + 1) + (len(ranks) == 4))


def commands(command):
    if command.startswith("run"):
        return f"tlaunch {command} --devices 4 -- python program.py"
    return f"tlaunch run --detach --devices 4 -- python program.py; clear; tlaunch {command}"


def check_rest(lines, command, shown):
    """What stands on the screen beside `shown` lines of ranks: the end of a run, and the shell's own."""
    # What is offered is in one line, or in two on a narrow terminal.
    end = (4, 5) if command.startswith("run") else (2,)
    last = [line for line in lines if line][-max(end) :]
    assert last[-2:] == ["code=0", ">"]
    if end != (2,):
        [told] = [at for at, line in enumerate(last) if "4 ranks succeeded" in line]
        assert len(last) - told in end
        assert last[told + 1].startswith("next: ")
    rest = [line for line in lines if line and "code=" not in line and "ranks started in" not in line]
    assert len(rest) <= shown + max(end), lines


# --- the status line ---

BEATS = """
import json, os, pathlib, time
path = pathlib.Path(os.environ["TLAUNCH_HEARTBEAT_FILE"])
for step in range(10**9):
    path.write_text(json.dumps({"step": step, "loss": 2.5, "tokens_per_s": 12345.0}))
    time.sleep(0.05)
    if os.path.exists("go"): break
"""


def test_a_status_is_redrawn_in_its_place(play, wait_until):
    terminal = play(BEATS, 80, "tlaunch run --console status --devices 4 -- python program.py")
    first = terminal.wait_for("4 ranks for .* step ")
    assert re.fullmatch(rf"4 ranks for {TIME}: step \d+, loss 2\.5000, 12,345 tokens/s", first)
    wait_until(lambda: terminal.wait_for("4 ranks for .* step ") != first, "another status")
    assert len([line for line in terminal.lines() if "4 ranks for" in line]) == 1
    terminal.touch("go")
    assert terminal.ended() == 0
    assert [line[:17] for line in terminal.lines() if "4 ranks" in line] == ["4 ranks started i", "4 ranks succeeded"]


FAILS_ONCE = """
import os, pathlib, sys, time
if os.environ["RANK"] == "0" and not os.path.exists("failed"):
    time.sleep(4)
    pathlib.Path("failed").touch()
    sys.exit(1)
while not os.path.exists("go"): time.sleep(0.05)
"""


def test_an_attempt_has_its_own_time(launcher, play):
    terminal = play(FAILS_ONCE, 80, "tlaunch run --devices 2 --max-restarts 1 -- python program.py")
    told = terminal.wait_for(r"attempt 1, 2 ranks for \d+ s")
    failed_s = time.time() - (launcher.directory / "failed").stat().st_mtime
    terminal.touch("go")
    assert terminal.ended() == 0
    assert int(re.search(r"for (\d+) s", told)[1]) <= failed_s


TRAINS = """
import json, os, pathlib, time
path = pathlib.Path(os.environ["TLAUNCH_HEARTBEAT_FILE"])
print("begins", flush=True)
for step in range(1, 401):
    path.write_text(json.dumps({"step": step, "last_step": 400, "loss": 2.5, "tokens_per_s": 12345.0}))
    print(f"epoch: 1 step: {step}, loss is 2.5000, 12345 tokens/s", flush=True)
    time.sleep(0.05)
    if os.path.exists("go"): break
print("trained", flush=True)
"""


def test_a_training_that_tells_its_end_has_one_line_for_its_steps(launcher, play):
    """On a terminal, with the time that is left. Its log has them all; so has a stdout that is none."""
    terminal = play(TRAINS, 80, "tlaunch run --devices 2 -- python program.py")
    told = terminal.wait_for("2 ranks for .* left")
    # From a minute on, 80 columns have no room for the speed.
    assert re.fullmatch(rf"2 ranks for {TIME}: step \d+ of 400, loss 2\.5000(, 12,345 tokens/s)?, {TIME} left", told)
    assert "begins" in terminal.lines()
    terminal.touch("go")
    assert terminal.ended() == 0
    lines = [line for line in terminal.lines() if line]
    assert ("trained" in lines, [line for line in lines if "step" in line]) == (True, [])
    log = (launcher.runs / "latest" / "device0" / "train.log").read_text().splitlines()
    assert log[1] == "epoch: 1 step: 1, loss is 2.5000, 12345 tokens/s"
    done = launcher.run("run", "--devices", 1, "--", sys.executable, "program.py")
    assert done.stdout.splitlines()[1] == log[1]


IMPATIENT = """
import sys
from launcher.cli import main
from launcher.runs import silence
silence.SILENT_FROM_S = 2.0
silence.MIN_RECORDS = 10**9  # no rank is measured by its own pace: one that the machine holds up is not silent
main.main(sys.argv[1:])
"""
ONE_IS_SILENT = """
while not os.path.exists("go"):
    if os.environ["RANK"] != "2":
        print("here", flush=True)
    time.sleep(0.05)
"""


def test_a_rank_that_is_silent_is_named_and_where_to_look_is_said_once(launcher, play, wait_until):
    launcher.write("impatient.py", IMPATIENT)
    command = f"{sys.executable} impatient.py run --devices 4 --console status -- python program.py"
    terminal = play(ONE_IS_SILENT, 80, command)
    row = f"4 ranks for .*rank 2 silent for {TIME}"
    first = terminal.wait_for(row)
    wait_until(lambda: terminal.wait_for(row) != first, "another state")
    terminal.touch("go")
    assert terminal.ended() == 0
    said = [line for line in terminal.lines() if "stacks" in line]
    assert len(said) == 1
    assert re.fullmatch(r"  tlaunch stacks 2\S+ --rank 2", said[0])


ONE_DRAWS = """
for step in range(10**9):
    if os.environ["RANK"] != "2":
        os.write(1, f"\\r{step}% drawn".encode())
    time.sleep(0.05)
    if os.path.exists("go"): break
"""


def test_a_rank_that_is_silent_is_named_while_another_draws_a_bar(launcher, play):
    """The bar has the row; the hint is a line of its own above it."""
    launcher.write("impatient.py", IMPATIENT)
    terminal = play(ONE_DRAWS, 80, f"{sys.executable} impatient.py run --devices 4 -- python program.py")
    terminal.wait_for(r"rank 2 has been silent for \d+ s; to show its stack:")
    terminal.wait_for(r"  tlaunch stacks 2\S+ --rank 2")
    terminal.wait_for(r"\d+% drawn")
    assert not [line for line in terminal.lines() if "4 ranks for" in line]
    terminal.touch("go")
    assert terminal.ended() == 0


# --- unfinished lines ---

BAR = """
rank = int(os.environ["RANK"])
def say(text):
    os.write(1, text.encode())
say("first\\n")
for step in range(10**9):
    say("\\r\\t%3d%%|%s| %d/100 [00:01, rank %d]" % (step % 100, ("\u2588" * (step % 10 + rank)).ljust(18), step, rank))
    time.sleep(0.05)
    if step > 5 and os.path.exists("finish"): break
say("\\r100%| 100/100\\nmore? ")
while not os.path.exists("go"): time.sleep(0.01)
"""


@in_turn("command", "run", "run --console collapse", "logs -f --merge", "logs -f")
def test_a_progress_bar_is_seen_while_it_grows(launcher, play, wait_until, columns, command):
    terminal = play(BAR, columns, commands(command))
    who = "" if command == "run" else r"\[0-3\]"
    bar = rf"{who} +\d+(\.\.\d+)?%.*/100 \[00:01"
    first = terminal.wait_for(bar)
    wait_until(lambda: terminal.wait_for(bar) != first, "another state")
    assert len([line for line in terminal.lines() if "%" in line]) == 1
    assert not [line for line in terminal.lines() if "4 ranks for" in line]
    if command.startswith("logs"):
        wait_until(lambda: all(launcher.said_by(n, terminal.lines())[:1] == ["first"] for n in range(4)), "all lines")
        assert [any("%" in row for row in terminal.rows()) for _ in range(20)].count(False) <= 1
    terminal.touch("finish")
    terminal.wait_for(rf"{who} ?more\?")
    terminal.touch("go")
    assert terminal.ended() == 0
    lines = terminal.lines()
    for rank in range(4):
        said = lines[lines.index("first") :][:3] if command == "run" else launcher.said_by(rank, lines)
        assert said == ["first", "100%| 100/100", "more?"]
    check_rest(lines, command, 3 * (1 if command == "run" else 4))


@pytest.mark.parametrize("command", ["run", "logs -f"])
def test_ctrl_c_leaves_no_half_row(launcher, play, command):
    terminal = play(BAR.replace("rank %d", "rank %d" + "x" * 80), 80, commands(command))
    terminal.wait_for(r".*\d+%.*x")
    terminal.press("C-c")
    assert terminal.ended() == 130
    assert not [line for line in terminal.lines() if "xxx" in line and not line.endswith("x" * 80 + "]")]
    if command != "run":
        assert not [row for row in terminal.rows() if "%" in row]
        assert launcher.call("stop").returncode == 0


def test_a_terminal_that_is_held_does_not_hold_the_run(launcher, play, wait_until):
    """Ctrl-S while a bar is drawn: no line stands beside it after Ctrl-Q; how the run ended is told all the same."""
    terminal = play(f"{BAR}\nraise SystemExit(3)", 80, "tlaunch run --devices 2 -- python program.py 2> said")
    terminal.wait_for(r" +\d+%")
    terminal.press("C-s")
    terminal.touch("finish")
    log = launcher.latest / "device0" / "train.log"
    wait_until(lambda: b"more?" in log.read_bytes(), "the line after the bar")
    time.sleep(0.5)  # it would be shown by now
    terminal.press("C-q")
    terminal.wait_for("100%\\| 100/100$")
    assert [line for line in terminal.lines() if "%" in line] == ["100%| 100/100"]
    terminal.press("C-s")
    terminal.touch("go")
    wait_until(lambda: "exit code 3" in (launcher.directory / "said").read_text(), "its last words")
    terminal.press("C-q")
    terminal.wait_for(".*code=3")  # behind the prompt, which no process was left to take away


def test_the_unfinished_line_of_a_rank_that_ended_hides_nothing(play):
    program = f"import os, time\nos.write(1, b'loading')\nif os.environ['RANK'] == '1':\n    {WAIT.splitlines()[1]}"
    terminal = play(program, 80, "tlaunch run --devices 2 -- python program.py")
    terminal.wait_for("1 of 2 ranks running")
    assert "loading" not in terminal.rows()
    terminal.touch("go")
    assert terminal.ended() == 0
    assert "loading" in terminal.lines()


def test_a_bar_is_on_stdout_alone(launcher, play, wait_until):
    terminal = play(BAR, 80, "tlaunch run --devices 4 -- python program.py 2> said")
    terminal.wait_for(r" +\d+%\|")
    said = launcher.directory / "said"
    wait_until(lambda: "4 ranks started" in said.read_text(), "4 ranks")
    terminal.touch("finish", "go")
    assert terminal.ended() == 0
    assert "%" not in said.read_text()
    assert launcher.call("logs", "-f", "--rank", 0).stdout == "first\n100%| 100/100\nmore? \n"


# --- the last words ---


@pytest.mark.parametrize(("options", "exits", "expected"), [
    ("", 0, ["report", "rerun"]), ("", 1, ["logs --rank failed", "report", "rerun"]), ("--runs-dir b", 0, ["report", "rerun"]),
    ("-q", 1, []),
])  # fmt: skip
def test_a_run_that_has_ended_says_what_comes_next(launcher, play, options, exits, expected):
    """What it says can be typed as it stands, at 80 columns too, and is of this run whatever has begun since; -q says none of it."""
    terminal = play(f"raise SystemExit({exits})", 80, f"tlaunch run {options} --devices 2 -- python program.py")
    assert terminal.ended() == exits
    [run] = [path for path in launcher.directory.glob("*/2*") if path.is_dir()]
    name = f"b/{run.name}" if "b" in options else run.name
    # No command is broken by the end of a row.
    offered = re.findall("`tlaunch ([^`]+)`", "\n".join(terminal.lines()))
    assert offered == [f"{verb} {name}" for verb in expected]
    assert any(line.startswith("next: ") for line in terminal.lines()) == bool(expected)


# --- Ctrl-C ---


def test_ctrl_c_ends_a_run(launcher, play):
    terminal = play(GOES_ON, 80, "tlaunch run --console status --devices 4 -- python program.py")
    terminal.wait_for("4 ranks for ")
    launcher.wait_ready(4, "line 0")
    terminal.press("C-c")
    assert terminal.ended() == 130
    assert not launcher.processes()
    words = [line for line in terminal.lines() if line and "line" not in line]
    told = words[words.index("SIGINT: stopping all ranks within 15 s; press Ctrl-C again to kill them at once") :]
    assert re.fullmatch(r"stopped after .* s: 4 ranks ended by SIGTERM \(signal 15\); logs in", told[1])
    assert re.fullmatch(r" +runs/\S+", told[2])  # in a row of its own, so that it is whole
    assert told[3].startswith("next: ")
    assert told[-2:] == ["code=130", ">"]


def test_top_fits_and_leaves_the_terminal_as_it_was(launcher, play):
    program = f"import os, signal\nif os.environ['RANK'] == '3': os.kill(os.getpid(), signal.SIGSTOP)\n{GOES_ON}"
    terminal = play(program, 80, commands("top --interval 0.1"))
    states = [[str(rank), "stopped" if rank == 3 else "running"] for rank in range(4)]

    def table():
        rows = [row.split() for row in terminal.rows() if re.match(r" +\d ", row)]
        return [row[:2] for row in rows] == states and len({len(row) for row in rows}) == 1

    terminal.wait_until(table, "a row for each rank")
    terminal.press("C-c")
    assert terminal.ended() == 130
    assert not [line for line in terminal.lines() if "Traceback" in line]
    assert launcher.call("stop", "--kill").returncode == 0  # a stopped rank would take its whole grace


# --- the state of a run ---

IMPORTED = "import os, time\nwhile not os.path.exists('import'): time.sleep(0.01)"
STEPS = """
import os, signal, time
import slow_module
signal.signal(signal.SIGTERM, signal.SIG_IGN)
step = 0
while not os.path.exists("go"):
    step += 1
    print("step %d/5000 loss %.3f" % (step, 9 / step), flush=True)
    time.sleep(0.2)
time.sleep(1000)
"""


@pytest.mark.parametrize("columns", [40, *WIDTHS])
def test_the_foot_says_from_the_first_moment_how_a_run_stands(launcher, play, columns):
    launcher.write("slow_module.py", IMPORTED)
    options = "--devices 2 --grace 60 --console status --preload slow_module"
    # Below a few lines: what a narrower terminal moves out at the top cannot be erased.
    command = f'seq 5; PYTHONPATH=".:$PYTHONPATH" tlaunch run {options} -- python program.py'
    terminal = play(STEPS, columns, command)
    # From a minute on, 40 columns have no room for the loss.
    told = r"(2 ranks for )?(\d+ s: step \d+ of 5000, loss \d\.\d{4}|\d+ min( \d+ s)?: step \d+ of 5000)"
    terminal.wait_for(rf"importing slow_module \.\.\.( {TIME})?$")
    terminal.touch("import")
    terminal.wait_for(told)
    terminal.resize(25, 24)
    terminal.wait_for(rf"({TIME}: )?step \d+ of 5000$")
    assert len([row for row in terminal.rows() if "of 5000" in row]) == 1
    terminal.resize(columns, 24)
    terminal.wait_for(told)
    assert len([row for row in terminal.lines() if "of 5000" in row]) == 1
    terminal.press("C-c")
    terminal.wait_for(r"2 of 2 ranks ending, killed in (1 min|\d+ s)$")
    terminal.press("C-c")
    assert terminal.ended() == 130
    assert not [line for line in terminal.lines() if "of 5000" in line or " ending, " in line or "importing" in line]


def test_nothing_is_redrawn_beside_what_a_pipe_brings_to_the_terminal(play):
    terminal = play(COUNTS, 80, "tlaunch run --devices 2 -- python program.py | tee all")
    terminal.wait_for("line 20$")
    assert "line 0" in terminal.lines()
    assert any(line.startswith("2 ranks started in runs/") for line in terminal.lines())
    terminal.touch("go")
    assert terminal.ended() == 0
    assert [line for line in terminal.lines() if "line" in line] == [f"line {number}" for number in range(int(LAST))]


# --- another size ---


def test_a_window_may_change_its_size(launcher, play):
    terminal = play(COUNTS, 80, commands("run --console collapse"))
    terminal.wait_for(r"\[0\b.*\] line 5")
    for size in ((30, 10), (80, 24), (200, 40)):
        terminal.resize(*size)
    terminal.touch("go")
    assert terminal.ended() == 0
    for rank in range(4):
        assert launcher.said_by(rank, terminal.lines()) == [f"line {number}" for number in range(int(LAST))]


LAST = "60"
COUNTS = f"""
import os, time
for n in range({LAST}):
    print("line", n, flush=True)
    while n == 20 and not os.path.exists("go"): time.sleep(0.01)
    time.sleep(0.01)
"""
