"""`tlaunch top`, and what a run measured in its last minutes."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from dataclasses import replace

import pytest
from rich.console import Console

from launcher.cli.commands.top.sampler import MAX_STEPS, RecentMetrics, Sampler, to_lines
from launcher.cli.commands.top.top_command import columns_at, to_screen
from launcher.cli.text.rank_view import RankView
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import AgentStarted, RankStarted, Slow
from launcher.core.heartbeat import Beat, beat
from launcher.core.machine.proc import Usage, identify
from launcher.core.metrics import StepMetrics, to_line
from launcher.core.run_dir import RunDir
from launcher.runs.engine_ranks import note_process
from tests.conftest import PATIENCE_S
from tests.programs import acted_run

from .conftest import read_until

HEADER = [column.name for column in columns_at(0)]


@pytest.fixture
def terminal():
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    yield leader, follower
    os.close(leader)
    os.close(follower)


def start_top(launcher, follower, *options):
    return launcher.start(
        "top", "a", "--interval", 0.2, *options, stdin=follower, stdout=follower, stderr=follower, env={"TERM": "xterm"}
    )


def beat_once(run_dir):
    values = Beat(step=12, loss=3.25, tokens_per_s=5100.0, device_memory_bytes=70 << 20)
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, values)


def begun(launcher, ranks, *more):
    """The run `a`, all of whose ranks are this process."""
    me = acted_run.me()
    events = [AgentStarted(me, None, ranks), *(RankStarted(rank, me.pid, me.started) for rank in range(ranks)), *more]
    return acted_run.make(launcher.runs / "a", events, ranks=ranks)


def test_without_a_terminal_one_table_is_printed(launcher):
    with acted_run.playing(launcher.runs / "a", "stopped"):
        run_dir = acted_run.RunDir(launcher.runs / "a")
        acted_run.append(run_dir, Slow(0, 2.0, 1.0, 5))
        beat_once(run_dir)
        done = launcher.call("top", "a")
    assert done.returncode == 0, done.stderr
    title, header, first, second = done.stdout.splitlines()
    assert re.fullmatch("a: running for .*2 of 2 ranks running", title)
    assert header.split() == ["RANK", "STATE", "STEP", "LOSS", "TOKENS/S", "CPU", "RSS", "DEVICE", "BEAT", "WRITTEN"]
    assert first.split()[:7] == ["0", "running,", "slow", "12", "3.2500", "5,100", "0%"]
    assert "70.0 MiB" in first
    assert second.split()[:6] == ["1", "stopped", "-", "-", "-", "0%"]
    assert "\x1b" not in done.stdout


def test_a_busy_rank_is_seen_to_be_busy(launcher):
    sampler = Sampler(begun(launcher, 1))
    sampler.look()
    began_s, burnt_s = time.monotonic(), time.process_time()
    while time.process_time() - burnt_s < 0.1:
        pass
    share = sampler.look()[1][0].cpu_share
    assert share > 0.5 * 0.1 / (time.monotonic() - began_s)  # of a machine that may be busy with other things


def test_q_ends_it_and_the_run_goes_on(launcher, terminal):
    leader, follower = terminal
    with acted_run.playing(launcher.runs / "a") as process:
        run_dir = acted_run.RunDir(launcher.runs / "a")
        top = start_top(launcher, follower, "--interval", 3600)
        read_until(leader, b"%")  # the second look, after which it waits for an hour
        beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=4711))
        measure(run_dir, [9.0, 0.125])
        os.write(leader, b"xq")
        assert top.wait(PATIENCE_S) == 0
        assert process.poll() is None
        os.write(leader, b"echoed")
        shown = read_until(leader, b"echoed")
    assert (b"4711" in shown, b"0.1250" in shown) == (True, True)


LEFT_OUT = ("DEVICE", "BEAT", "RSS", "CPU", "TOKENS/S", "WRITTEN", "LOSS", "STEP")


@pytest.mark.parametrize(("width", "count"), [(90, 0), (80, 1), (67, 2), (58, 3), (52, 4), (42, 5), (33, 6), (19, 8)])
def test_a_narrow_screen_has_fewer_columns(launcher, width, count):
    run_dir = begun(launcher, 2, Slow(0, 2.0, 1.0, 5))
    beat_once(run_dir)
    state, rows = Sampler(run_dir).look()
    # What is measured has to be as wide on every machine: a cell of 997.0 KiB would leave no room for another column.
    state = replace(state, looked_ns=rows[0].figures.heartbeat.time_ns)
    rows = [replace(row, usage=Usage(0, 3 << 20), cpu_share=0.5, written_ns=state.looked_ns) for row in rows]
    lines = drawn(to_screen(state, rows, [], width, 24), width)
    assert lines[1].split() == [name for name in HEADER if name not in LEFT_OUT[:count]]
    assert lines[2].split()[:3] == ["0", "running,", "slow"]
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("height", [5, 6, 7, 24])
def test_each_rank_can_be_scrolled_to_however_low_the_screen(launcher, height):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(identify(1), None, 50)], ranks=50)
    state, rows = Sampler(run_dir).look()
    view = RankView(grouped=False)
    seen = set()
    for _ in range(60):
        lines = drawn(to_screen(state, rows, ["loss", "tokens/s"], 80, height, view=view), 80)
        assert len(lines) <= height - 1
        shown = [int(line.split()[0]) for line in lines if line.split()[0].isdecimal()]
        assert lines[-1].startswith(f"rows {shown[0] + 1}-{shown[-1] + 1} of 50  ? keys")
        assert ("loss" in lines) == (height > 6)
        seen.update(shown)
        view.press("page down", len(HEADER))
    assert (seen, shown[-1]) == (set(range(50)), 49)
    view.press("home", len(HEADER))
    view.press("up", len(HEADER))
    assert drawn(to_screen(state, rows, [], 80, height, view=view), 80)[2].split()[0] == "0"


def test_columns_without_a_value_give_way_first(launcher):
    run_dir = begun(launcher, 2)
    run_dir.train_log(0).write_text("step 1 loss 2\n")
    state, rows = Sampler(run_dir).look()
    header = drawn(to_screen(state, rows, [], 60, 24), 60)[1].split()
    assert (set(HEADER) - set(header)) == {"DEVICE", "BEAT", "CPU"}


def test_how_to_see_the_log_of_the_scheduler_is_told_of_this_run(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(acted_run.me(), None, 1)], ranks=1)
    run_dir.scheduler.mkdir()
    run_dir.scheduler_log.write_text("here\n")
    acted_run.make(launcher.runs / "b", [AgentStarted(acted_run.me(), None, 1)], ranks=1)
    [command] = [line for line in launcher.call("top", "a", code=0).stdout.splitlines() if "--scheduler" in line]
    assert command == "  tlaunch logs a --scheduler"
    assert launcher.call(*command.split()[1:], code=0).stdout == "here\n"


def test_a_rank_that_is_silent_while_others_write_stands_apart(launcher):
    me = acted_run.me()
    events = [AgentStarted(me, None, 4), *(RankStarted(rank, me.pid, me.started) for rank in range(4))]
    run_dir = acted_run.make(launcher.runs / "a", ranks=4)
    acted_run.append(run_dir, *events, first_ns=time.time_ns() - 70 * 10**9)
    for rank in range(4):
        run_dir.train_log(rank).write_text("here\n")
    os.utime(run_dir.train_log(2), ns=(0, time.time_ns() - 60 * 10**9))
    lines = launcher.call("top", "a", code=0).stdout.splitlines()
    assert [line.split()[1:3] for line in lines if line.split()[0] == "2"] == [["running,", "silent"]]
    assert sum("running, silent" in line for line in lines) == 1
    assert lines[-1] == "  tlaunch stacks a --rank 2"


def test_ranks_that_do_not_fit_are_grouped_and_those_that_differ_come_first(launcher):
    """By what they print, too, which is said; a rank that is one step behind does not differ. Keys choose otherwise."""
    run_dir = begun(launcher, 64, Slow(7, 2.0, 1.0, 5))
    for rank in range(64):
        step, loss = {5: (80, "1.0"), 9: (120, "nan")}.get(rank, (120 - rank % 2, f"{1 + rank / 64:.2f}"))
        run_dir.train_log(rank).write_text(f"step {step} loss {loss}\n")
    state, rows = Sampler(run_dir).look()
    view = RankView()

    def screen():
        return drawn(to_screen(state, rows, [], 100, 24, view=view), 100)

    def first_cells():
        return [line.split()[:5] for line in screen()[2:-2]]

    assert first_cells() == [
        ["5", "running", "80", "1.0000", "-"],
        ["7", "running,", "slow", "119", "1.1100"],
        ["9", "running", "120", "nan", "-"],
        ["0-4,6,8,10-63", "running", "119..120", "1.0000..1.9800", "-"],
    ]
    assert screen()[-2:] == ["figures of ranks 0-63 are read from logs", "? keys  q quit  g each rank  s sort"]
    view.press("g", len(HEADER))
    assert [cells[0] for cells in first_cells()] == [str(rank) for rank in range(19)]
    view.press("s", len(HEADER))  # not by rank, as they are already
    assert screen()[-1].split("  ")[-1] == "s sort: STATE"
    view.press("s", len(HEADER))
    assert (first_cells()[0][0], screen()[-1].split("  ")[-1]) == ("5", "s sort: STEP")
    view.press("r", len(HEADER))
    assert first_cells()[0][:3] == ["0", "running", "120"]
    for key, name in (("S", "STATE"), ("S", ""), ("S", "RANK"), ("s", ""), ("s", "STATE"), ("s", "STEP")):
        view.press(key, len(HEADER))
        assert screen()[-1].split("  ")[-1] == (f"s sort: {name}, reversed" if name else "s sort")
    view.press("?", len(HEADER))
    assert any(line.startswith("q ") for line in screen())
    view.press("x", len(HEADER))
    assert first_cells()[0][:3] == ["0", "running", "120"]


def test_ranks_that_count_samples_are_alike_within_a_hundredth(launcher):
    run_dir = begun(launcher, 3)
    for rank, samples in enumerate((6400, 6464, 1280)):
        run_dir.train_log(rank).write_text(f"Train Epoch: 1 [{samples}/60000 (9%)]\tLoss: 1.0\n")
    state, rows = Sampler(run_dir).look()
    lines = drawn(to_screen(state, rows, [], 100, 24, view=RankView(grouped=True)), 100)
    assert [line.split()[:3] for line in lines[2:4]] == [["2", "running", "1280"], ["0-1", "running", "6400..6464"]]


def test_keys_act_at_once(launcher, terminal):
    """Long before the next look, which is an hour away; the run goes on."""
    leader, follower = terminal
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
    begun(launcher, 64)
    top = start_top(launcher, follower, "--interval", 3600)
    read_until(leader, b"0-63")
    os.write(leader, b"g")
    read_until(leader, b"rows 1-8 of 64")
    os.write(leader, b"\x1b[6~j")
    read_until(leader, b"rows 10-17 of 64")
    os.write(leader, b"\x1b[F")
    read_until(leader, b"rows 57-64 of 64")
    os.write(leader, b"?")
    read_until(leader, b"scroll one page")
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    os.write(leader, b"?")
    read_until(leader, b"rows 39-64 of 64")
    os.write(leader, b"q")
    assert top.wait(PATIENCE_S) == 0


def drawn(screen, width):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(screen)
    return [line.rstrip() for line in captured.get().splitlines()]


def write(path, ages_s, losses=None, mode="ab"):
    """A step for each age, with its number as its loss where none is given, and more tokens/s than the one before."""
    now_ns = time.time_ns()
    with path.open(mode) as file:
        for number, age_s in enumerate(ages_s):
            loss = losses[number] if losses else float(number)
            speed = 10.0 * (number + 1)
            file.write(to_line(StepMetrics(now_ns - round(age_s * 1e9), 0, number, loss, tokens_per_s=speed)))


def measure(run_dir, losses):
    """A step every tenth of a second, the last one now."""
    write(run_dir.metrics, [number / 10 for number in reversed(range(len(losses)))], losses)


def test_what_the_run_measures_stands_above_the_table(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(identify(1), None, 2), RankStarted(0, 1)])
    measure(run_dir, [8.0, 4.0, None, 2.0, 1.0])
    done = launcher.call("top", "a")
    assert done.returncode == 0, done.stderr
    _, loss, speed, header, *rows = done.stdout.splitlines()
    assert loss.split() == ["loss", "8.0000", "█▄", "▂▁", "1.0000", "over", "0.4", "s"]
    assert speed.split() == ["tokens/s", "10", "▁▃▅▇█", "50", "over", "0.4", "s"]
    assert (header.split()[0], len(rows)) == ("RANK", 2)
    ascii_only = launcher.call("top", "a", env={"PYTHONIOENCODING": "ascii"}).stdout
    assert ascii_only.isascii()
    assert ascii_only.splitlines()[1].split()[1:4] == ["8.0000", "#-", "._"]


def test_the_last_step_and_the_time_left_are_shown(launcher):
    run_dir = begun(launcher, 1)
    variables = {TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}
    sampler, begun_ns = Sampler(run_dir), time.time_ns() - 100 * 10**9
    for step, second in ((10, 0), (20, 40)):
        beat(variables, Beat(step=step, last_step=30, loss=2.0))
        os.utime(run_dir.heartbeat(0), ns=(0, begun_ns + second * 10**9))
        sampler.look()
    assert re.fullmatch(r"progress step 20 of 30, (40|39) s left", sampler.measured(80)[0])
    assert sampler.measured(24)[0] == "progress step 20 of 30,…"


def test_the_time_of_a_step_is_told_by_what_it_went_into(launcher):
    steps = [
        StepMetrics(1, 0, 1, step_s=1.0, compute_s=0.5, communication_s=0.5, padding_share=0.25),
        StepMetrics(2, 0, 2, step_s=3.0, compute_s=2.5, communication_s=0.5),
        StepMetrics(3, 0, 3, loss=2.0),
    ]
    line = "step     2 s: compute 75%, communication 25%; padding 25%"
    assert list(to_lines(steps, 80, plain=False)) == [line]
    assert list(to_lines(steps, 39, plain=False)) == [
        "step     2 s: compute 75%,",
        "         communication 25%; padding 25%",
    ]
    assert list(to_lines(steps[2:], 80, plain=False)) == []


def test_the_norm_of_the_gradient_is_told_with_how_often_it_was_clipped():
    steps = [
        StepMetrics(1, 0, 1, gradient_norm=2.0, clipped_share=1.0),
        StepMetrics(2, 0, 2, gradient_norm=0.5, clipped_share=0.0),
    ]
    [line] = to_lines(steps, 80, plain=True)
    assert line.split()[:2] == ["gradient", "2"]
    assert line.endswith(" 0.5        over 0.0 s, clipped in 50% of steps")


def test_a_screen_is_filled_and_not_exceeded(launcher, terminal):
    leader, follower = terminal
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    run_dir = begun(launcher, 200)
    measure(run_dir, [float(step) for step in range(300, 0, -1)])
    start_top(launcher, follower)
    first, _, _ = read_until(leader, b"? keys").partition(b"? keys")  # it may have been redrawn meanwhile
    assert first.count(b"running") < 30
    shown = first.decode()
    [line] = [line.rstrip() for line in shown.splitlines() if "tokens/s" in line]
    assert 40 < len(line) <= 80
    assert re.search(r"▁+.*█+ 3,000 +over \d+ s$", line)


def test_a_screen_is_of_one_moment(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(identify(1), None, 1)])
    measure(run_dir, [8.0, 4.0])
    sampler = Sampler(run_dir)
    sampler.look()
    first = sampler.measured(80)
    measure(run_dir, [2.0, 1.0])
    assert sampler.measured(80) == first
    sampler.look()
    assert sampler.measured(80) != first


def test_ranks_of_an_engine_are_watched_until_they_are_gone(launcher, terminal):
    leader, follower = terminal
    run_dir = acted_run.make(launcher.runs / "a", ranks=1)
    run_dir.run_json.write_text(json.dumps({**json.loads(run_dir.run_json.read_text()), "engine": "Open MPI"}))
    with subprocess.Popen(["sleep", "1000"]) as rank:
        note_process(run_dir, 0, identify(rank.pid))
        top = start_top(launcher, follower)
        read_until(leader, b"a: not supervised: Open MPI")
        rank.kill()
        rank.wait()
        read_until(leader, b"a: ended: Open MPI")
        assert top.wait(PATIENCE_S) == 0


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_five_minutes_of_the_fastest_training_are_seen(path):
    write(path, (age / 50 for age in range(16_000, 0, -1)))
    steps = RecentMetrics(RunDir(path.parent)).look()
    assert len(steps) == pytest.approx(15_000, abs=1)
    assert steps[-1].step == 15_999


def test_what_comes_is_added_and_what_is_old_goes(path):
    write(path, [400.0, 200.0])
    recent = RecentMetrics(RunDir(path.parent))
    assert [step.step for step in recent.look()] == [0, 1]
    write(path, [100.0, 1.0])
    assert [step.step for step in recent.look()] == [1, 0, 1]
    write(path, [0.5] * (MAX_STEPS + 10))
    assert len(recent.look()) == MAX_STEPS


def test_a_loss_that_is_not_finite_is_shown_as_it_is_now(path):
    write(path, [0.0] * 60, [5.0 - number / 10 for number in range(20)] + [None] * 40)
    loss, _ = to_lines(RecentMetrics(RunDir(path.parent)).look(), 80, plain=False)
    assert loss.split()[1] == "5.0000"
    assert re.search(r"▁ {20,}nan +over", loss)


def test_of_a_file_that_is_gone_nothing_is_left(path):
    recent = RecentMetrics(RunDir(path.parent))
    assert recent.look() == []
    write(path, [3.0, 2.0, 1.0])
    assert len(recent.look()) == 3
    write(path, [5.0], mode="wb")
    assert len(recent.look()) == 1
    path.unlink()
    assert recent.look() == []
    write(path, [3.0, 2.0])
    assert len(recent.look()) == 2


def test_times_that_cannot_be_hide_nothing(path):
    write(path, [3.0, -(10.0**9), 2.0, 1.0])
    assert [step.step for step in RecentMetrics(RunDir(path.parent)).look()] == [0, 2, 3]
    write(path, [-(10.0**9)])
    assert [step.step for step in RecentMetrics(RunDir(path.parent)).look()] == [0, 2, 3]
    write(path, [3.0, 2.0, 63.0, 62.0], mode="wb")
    steps = RecentMetrics(RunDir(path.parent)).look()
    assert [step.step for step in steps] == [2, 3]
    assert [line.split()[-2:] for line in to_lines(steps[::-1], 80, plain=False)] == [["1.0", "s"]] * 2


def test_what_a_restart_computed_again_is_shown_once(path):
    before = acted_run.make(path.parent / "a")
    write(before.metrics, [60.0, 50.0, 40.0, 30.0])
    continued = {"run": "a", "checkpoint": str(before.checkpoints / "step-1"), "step": 1}
    run_dir = acted_run.make(path.parent / "b", continues=continued)
    recent, now_ns = RecentMetrics(run_dir), time.time_ns()
    assert recent.look() == []
    with run_dir.metrics.open("ab") as file:
        for attempt, step in ((0, 2), (0, 3), (0, 4), (1, 3), (1, 4)):
            file.write(to_line(StepMetrics(now_ns, attempt, step)))
    assert [(each.attempt, each.step) for each in recent.look()] == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)]
