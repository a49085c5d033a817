"""`tlaunch logs` over runs that the real command made."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import time

import pytest

from launcher.core.codec import encode
from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, Judged, RankEnded, RankStarted
from launcher.core.line_times import RECORD
from launcher.core.machine.proc import identify
from launcher.core.records import DeviceAssignment, Elastic, Layout
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Report
from launcher.logs.times import SECOND_NS
from tests.programs import acted_run
from tests.servers import server

from .failed_run import verdict
from .transcript import typed_lines

STEPS = [1 / (step + 1) for step in range(6)]
CHATTER = [
    "".join(f"step {step} loss {loss + rank / 100:.3f}\n" for step, loss in enumerate(STEPS))
    + "retrying\n" * (rank == 2)
    + "done\n"
    for rank in range(3)
]
TRACEBACK = """begin
Traceback (most recent call last):
  File "program.py", line 7, in <module>
    raise [ValueError, KeyError][os.environ["RANK"] == "1"]("why")
"""
RAISING = [f"{TRACEBACK}{error}\n" for error in ("ValueError: why", "KeyError: 'why'", "ValueError: why")]
TIMES = [f"2026-11-21 12:00:0{second} {['INFO', 'WARNING'][second % 2]} second {second}" for second in range(6)]
TIMED = ["".join(f"{line}\n  and more\n" for line in TIMES[rank::2]) for rank in range(2)]
FOLLOW = pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "follow"])


@pytest.fixture
def recorded(launcher):
    """A run that has ended, with these logs (None: not there); gives a function that asks for its logs."""

    def make(logs, events=(), arrivals=(), **fields):
        """`arrivals`: of each rank the lengths of its log by time."""
        now_ns = time.time_ns()
        report = Report("a", 0, Cause.FINISHED, 0, now_ns, now_ns, ())
        events = [AgentStarted(identify(1), None, len(logs)), *events, AgentEnded(Cause.FINISHED, 0)]
        run_dir = acted_run.make(launcher.runs / "a", events, ranks=len(logs), report=report, **fields)
        for rank, text in enumerate(logs):
            if text is not None:
                run_dir.train_log(rank).write_text(text)
        for rank, noted in enumerate(arrivals):
            records = [RECORD.pack(time_ns, end) for time_ns, end in noted.items()]
            run_dir.arrivals(rank).write_bytes(b"".join(records))
        run_dir.root.parent.joinpath("latest").symlink_to("a")
        return lambda *arguments: launcher.call("logs", *arguments)

    return make


def test_ranks_are_chosen(recorded):
    logs = recorded(["done\n", "done\nno such word\n", "done\n"], [AttemptStarted(0, 1), Judged(verdict("x"))])
    assert logs("--rank", "1", "-n", 1).stdout == "no such word\n"
    assert logs("--rank", "failed", "-n", 1).stdout == "no such word\n"
    assert logs("--rank", "0,2", "-n", 1).stdout == "[0] done\n[2] done\n"
    assert logs("--server", "0", "--rank", "1-2", "-n", 0).stdout == ""


MEANINGLESS = """
--rank 1-7; --rank 7; --rank x; --rank failed; --server 10.0.0.2; --grep '('; --level LOUD; --level ''
--since yesterday; --since ''; --merge --collapse; --exit-code; --follow --env; no-such-run
--prefix '{rank} '; --prefix '{'; --prefix '{server:d}'; --prefix '{time:d}'; --prefix '{global_rank:zz}'
--prefix '{global_rank!x}'; --prefix '{global_rank:{device}}'; --prefix '{server:99999999999999999999}'
--prefix x --json; --prefix x --collapse; --errors --grep x; --errors -v x; -i; --errors --merge; --errors -n 0; --timestamps --json; --timestamps --prefix x; -H '('; -H x --json
"""


def test_what_means_nothing_is_refused(recorded, launcher, snapshot):
    recorded(["", ""])
    assert launcher.refused(2, *(f"logs {each}" for each in typed_lines(MEANINGLESS))) == snapshot


def test_what_ranks_say_alike_is_one_line(recorded):
    assert recorded(CHATTER)("--collapse").stdout.splitlines() == [
        *[f"[0-2] step {step} loss {loss:.3f}..{loss + 0.02:.3f}" for step, loss in enumerate(STEPS)],
        "[2] retrying",
        "[0-2] done",
    ]


def test_what_is_left_out_and_what_either_expression_matches(recorded):
    logs = recorded(["Loss 1\nheartbeat loss\nerror\n"])
    assert logs("--grep", "LOSS", "-i", "--grep", "^error", "-v", "beat").stdout == "Loss 1\nerror\n"
    assert logs("-v", "loss", "-v", "^e").stdout == "Loss 1\n"


def test_what_was_raised_is_shown_once_with_its_ranks(recorded, launcher, snapshot):
    logs = recorded(RAISING)
    assert launcher.scene("logs --errors", code=0) == snapshot
    told = [json.loads(line) for line in logs("--errors", "--json").stdout.splitlines()]
    assert sorted(error["global_ranks"] for error in told) == [[0, 2], [1]]
    assert all(set(error) == {"global_ranks", "type", "message", "where", "text"} for error in told)
    assert told[0]["text"].startswith("Traceback")


def test_times_of_lines_merge_and_bound(recorded):
    logs = recorded(TIMED)
    assert logs("--merge", "--prefix", "").stdout.splitlines()[::2] == TIMES
    between = logs("--since", "2026-11-21T12:00:02", "--until", "2026-11-21T12:00:03", "--prefix", "{time} ").stdout
    assert between.splitlines() == [
        "12:00:02 2026-11-21 12:00:02 INFO second 2", "12:00:02   and more",
        "12:00:03 2026-11-21 12:00:03 WARNING second 3", "12:00:03   and more",
    ]  # fmt: skip
    assert logs("--until", "2026-11-21T12:00:03").stderr == ""
    assert {line.split()[3] for line in logs("--level", "warning").stdout.splitlines()[::2]} == {"WARNING"}


def test_lines_that_tell_no_time_are_chosen_by_their_arrival(recorded, launcher):
    now_ns = time.time_ns() // SECOND_NS * SECOND_NS
    ago = [
        {now_ns - seconds * SECOND_NS: end for seconds, end in each}
        for each in ([(50, 2), (30, 6)], [(40, 4), (20, 6)])
    ]
    logs = recorded(["a\nb\nc\n", "A\nB\nC\n"], arrivals=ago)
    assert logs("--since", "35s").stdout.split() == ["[0]", "b", "[0]", "c", "[1]", "C"]
    assert logs("--until", "45s").stdout.split() == ["[0]", "a"]
    merged = logs("--merge")
    assert (merged.stdout.split()[1::2], merged.stderr) == (["a", "A", "B", "b", "c", "C"], "")
    clock = [time.strftime("%H:%M:%S", time.localtime(now_ns / SECOND_NS - seconds)) for seconds in (50, 30, 30)]
    assert logs("--timestamps", "--rank", 0).stdout.splitlines() == [
        f"{at} {text}" for at, text in zip(clock, "abc", strict=True)
    ]
    assert logs("--timestamps", "-n", 1).stdout.splitlines()[0] == f"[0] {clock[2]} c"
    told = [json.loads(line)["time_ns"] for line in logs("--json", "--rank", 1).stdout.splitlines()]
    assert told == [now_ns - seconds * SECOND_NS for seconds in (40, 40, 20)]


BEGINS = """
import os, sys, time
attempt = os.environ["TLAUNCH_ATTEMPT"]
print("began", hex(time.time_ns()), flush=True)
while not os.path.exists(f"go{attempt}"):
    time.sleep(0.01)
sys.exit(1 - int(attempt))
"""


def test_an_agent_notes_when_lines_come(launcher, wait_until):
    process = launcher.start("run", "--max-restarts", 1, "--", "python", launcher.write("program.py", BEGINS))
    wait_until((launcher.latest / "run.json").exists, "the run")
    run_dir = RunDir(launcher.latest.resolve())

    def is_noted(count):
        log, arrivals = run_dir.train_log(0), run_dir.arrivals(0)
        if not (log.exists() and log.read_bytes().count(b"began") == count and (records := arrivals.read_bytes())):
            return False
        return RECORD.unpack(records[-RECORD.size :])[1] == log.stat().st_size

    for attempt in range(2):
        wait_until(lambda seen=attempt + 1: is_noted(seen), "a record of the line")
        launcher.write(f"go{attempt}")
    assert process.wait() == 0
    assert is_noted(2)
    lines = [json.loads(line) for line in launcher.call("logs", "--json").stdout.splitlines()]
    told = [(int(line["text"].split()[1], 16), line["time_ns"]) for line in lines if "began" in line["text"]]
    (first, first_came), (second, second_came) = told
    tick = SECOND_NS // 10  # of the clock that stamps files
    assert first - tick < first_came < second + tick < second_came + 2 * tick


def test_what_is_missed_is_said(recorded, launcher, snapshot):
    recorded(["a\n", "b\n", "c\n"])
    commands = ("logs --since 10m --rank 0-1", "logs --merge --rank 0-1", "logs --errors")
    assert launcher.scene(*commands, code=0) == snapshot
    assert launcher.scene("logs --grep x", code=1).endswith("! no line matches\n[exit code 1]")


def test_json_holds_rank_attempt_and_place(recorded, launcher):
    starts = [AttemptStarted(0, 1), RankStarted(0, 1), AttemptStarted(1, 1), RankStarted(0, 1, 0, 24)]
    logs = recorded(["hello\n--- attempt 1 ---\nhello\n"], starts)
    launcher.write("runs/a/device0/env.log", "RANK_ID=0\n")
    lines = [json.loads(line) for line in logs("--json").stdout.splitlines()]
    assert [(line["text"], line["attempt"], line["offset"]) for line in lines] == [
        ("hello", 0, 0), ("--- attempt 1 ---", 1, 6), ("hello", 1, 24),
    ]  # fmt: skip
    assert logs("--env", "--rank", 0).stdout == "RANK_ID=0\n"


TWO_ATTEMPTS = ["first\n--- attempt 1 ---\nsecond\nthird\n", "first\n--- attempt 1 ---\nsecond\n"]
TWO_STARTS = [
    AttemptStarted(0, 1), RankStarted(0, 1), RankStarted(1, 1), AttemptStarted(1, 1), RankStarted(0, 1, 0, 24), RankStarted(1, 1, 0, 24),
]  # fmt: skip


@FOLLOW
@pytest.mark.parametrize("option", [(), ("--merge",), ("--json",)], ids=" ".join)
def test_an_attempt_is_shown_alone(recorded, follow, option):
    logs = recorded(TWO_ATTEMPTS, TWO_STARTS)

    def shown(*options):
        lines = logs(*options, *option, *follow).stdout.splitlines()
        return sorted(json.loads(line)["text"] if option == ("--json",) else line.partition("] ")[2] for line in lines)

    assert shown("--attempt", 0) == ["first"] * 2
    assert shown("--attempt", 1) == ["--- attempt 1 ---"] * 2 + ["second"] * 2 + ["third"]
    assert shown("--attempt", 1, "-n", 1) == ["second", "third"]
    assert shown("--attempt", 0, "--grep", "first|second") == ["first"] * 2


def test_an_attempt_that_never_was_is_refused(recorded, launcher, snapshot):
    recorded(TWO_ATTEMPTS, TWO_STARTS)
    assert launcher.refused(2, "logs a --attempt 2", "logs a --attempt 0 --env", "logs a --scheduler") == snapshot


def test_what_is_known_of_no_attempt_is_of_the_first(recorded):
    """As of a run whose ranks an engine of the user has started."""
    logs = recorded(["one\ntwo\n"])
    assert logs("--attempt", 0).stdout == "one\ntwo\n"


def test_a_log_cannot_act_on_the_terminal(recorded, launcher):
    logs = recorded([""])
    rubbish = b"\x1b]0;title\x07a\x1b[2Jb \x1b[31mred\x1b[0m \xff\x00\r\ndone 10%\rdone 20%\n"
    (launcher.runs / "a" / "device0" / "train.log").write_bytes(rubbish)
    assert logs().stdout.splitlines() == ["ab red �^@", "done 20%"]
    assert "\x1b[31m" in logs("--color").stdout


def test_following_ends_with_the_run(launcher):
    both = "[ -e done0 ] && [ -e done1 ]"
    script = (
        f"for n in $(seq 0 19); do echo $n; sleep 0.02; done; : > done$RANK; until {both}; do sleep 0.01; done; exit 7"
    )
    launcher.run("run", "--detach", "--devices", 2, "--", "sh", "-c", script)
    done = launcher.call("logs", "-f", "--exit-code")
    assert done.returncode == 7
    for rank in (0, 1):
        of_rank = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert of_rank == [f"[{rank}] {number}" for number in range(20)]


# --- several ranks, attempts and logs ---


@pytest.mark.parametrize("options", [(), ("--merge",)], ids=" ".join)
def test_ranks_that_were_not_chosen_end(launcher, options):
    run_dir = acted_run.make(launcher.runs / "a")
    me = identify(os.getpid())
    acted_run.append(run_dir, AgentStarted(me, None, 2), AttemptStarted(0, 29500), RankStarted(0, me.pid, me.started))
    acted_run.append(run_dir, RankEnded(1, 0, 0))
    run_dir.train_log(0).write_text("on\n")
    follower = launcher.start("logs", "-f", "--rank", 0, *options, "a", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stdout.readline().endswith(b"on\n")
    now_ns = time.time_ns()
    run_dir.report.write_text(Report("a", 0, Cause.FINISHED, 0, now_ns, now_ns, ()).to_json())
    acted_run.append(run_dir, AgentEnded(Cause.FINISHED, 0))
    assert (follower.wait(60), follower.stderr.read()) == (0, b"")


LONG = "b" * 100


@FOLLOW
@pytest.mark.parametrize("option", ["--collapse", "--merge"])
def test_no_attempt_begins_before_the_last_has_ended(recorded, follow, option):
    mark, told = "--- attempt 1 ---\n", ["a\n", "a\n" + f"{LONG}\n" * 2_000]  # more than is read at once
    starts = [RankStarted(rank, 1, 0, len(text) + len(mark)) for rank, text in enumerate(told)]
    first = [AttemptStarted(0, 1), RankStarted(0, 1, 0), RankStarted(1, 1, 0)]
    logs = recorded([f"{text}{mark}a\nc\n" for text in told], [*first, AttemptStarted(1, 1), *starts])
    shown = [line.partition(" ")[2] for line in logs(option, *follow).stdout.splitlines()]
    at = shown.index("--- attempt 1 ---")
    assert sorted(set(shown[:at])) == ["a", LONG]
    assert shown[:at].count(LONG) == 2_000
    assert sorted(set(shown[at:])) == ["--- attempt 1 ---", "a", "c"]


MARKS = [f"--- attempt {number} ---" for number in range(3)]
# What ranks have written in three attempts: all devices, those of the second server alone, all but the second device.
ELASTIC = [
    ["a0", MARKS[1], "b0", MARKS[2], "c0"],
    ["a1", MARKS[1], "b1", MARKS[2], "c1"],
    ["a2", MARKS[2], "c2"],
    ["a3"],
]


@pytest.fixture
def elastic(recorded):
    """An elastic run of two servers with two devices each, whose ranks have come to other devices; as `recorded`."""
    layouts = [Layout(dp=count) for count in range(5)]
    starts = []
    for number, devices in enumerate([(0, 1, 2, 3), (2, 3), (0, 2, 3)]):
        starts.append(AttemptStarted(number, 1, DeviceAssignment(devices, layouts[len(devices)])))
        for rank in range(len(devices)):
            before = ELASTIC[rank][: ELASTIC[rank].index(MARKS[number]) + 1] if number else []
            starts.append(RankStarted(rank, 1, 0, sum(len(f"{line}\n") for line in before)))
    servers = [server("10.0.0.1", 0), server("10.0.0.2", 2)]
    texts = ["".join(f"{line}\n" for line in lines) for lines in ELASTIC]
    supervision = {"grace_s": 1.0, "elastic": encode(Elastic((0, 0, 1, 1), tuple(layouts)))}
    return recorded(texts, starts, cluster={"servers": encode(servers)}, supervision=supervision)


@FOLLOW
@pytest.mark.parametrize("options", [(), ("--merge",), ("-n", "9")], ids=" ".join)
def test_a_line_is_of_the_server_and_device_that_its_attempt_gave_the_rank(elastic, follow, options):
    """Ranks are numbered anew in each attempt, and one may have no part in some."""
    shown = elastic(*follow, *options, "--prefix", "{server}/{device} {local_rank} ").stdout.splitlines()
    assert sorted(line for line in shown if MARKS[0][:4] not in line) == [
        "10.0.0.1/0 0 a0", "10.0.0.1/0 0 c0", "10.0.0.1/1 1 a1",
        "10.0.0.2/0 0 a2", "10.0.0.2/0 0 b0", "10.0.0.2/0 0 c1",
        "10.0.0.2/1 1 a3", "10.0.0.2/1 1 b1", "10.0.0.2/1 1 c2",
    ]  # fmt: skip
    assert f"10.0.0.2/1 1 {MARKS[2]}" in shown
    of_second = elastic(*follow, *options, "--server", "1", "--prefix", "{global_rank} ").stdout.splitlines()
    assert sorted(line for line in of_second if MARKS[0][:4] not in line) == [
        "0 b0", "1 b1", "1 c1", "2 a2", "2 c2", "3 a3",
    ]  # fmt: skip
    assert elastic(*follow, *options, "--server", "10.0.0.1", "--rank", "1", "--prefix", "").stdout == "a1\n"


def test_last_lines_of_a_server_and_what_ranks_say_alike_there(elastic):
    assert elastic("--server", "10.0.0.1", "-n", 1, "--prefix", "").stdout == "c0\na1\n"
    assert elastic("--server", "10.0.0.2", "--collapse", "--grep", "^b").stdout == "[0-1] b0..1\n"
    assert elastic("--server", "10.0.0.1", "--rank", "3").returncode == 2
    assert elastic("--server", "10.0.0.3").returncode == 2


@FOLLOW
def test_the_last_lines_of_those_selected(recorded, follow):
    error = "2026-11-21 12:00:00 ERROR no\n  1\n  2\n  3\n"
    logs = recorded(["x 1\nx 2\nx 3\n" + "y\n" * 50, error])
    assert logs(*follow, "-n", 2, "--grep", "x").stdout == "[0] x 2\n[0] x 3\n"
    assert logs(*follow, "-n", 2, "--level", "ERROR").stdout == "[1]   2\n[1]   3\n"
    assert logs(*follow, "-n", 3, "--since", "2026-11-21", "--merge").stdout == "[1]   1\n[1]   2\n[1]   3\n"
    assert logs(*follow, "-n", 1, "--grep", "x|3", "--collapse").stdout == "[0] x 3\n[1]   3\n"
    assert logs(*follow, "-n", 1).stdout == "[0] y\n[1]   3\n"


@pytest.mark.parametrize("options", [(), ("-f",), ("-f", "--merge"), ("--collapse",), ("-n", 1)], ids=str)
def test_what_is_no_log_is_told(recorded, launcher, options):
    logs = recorded(["on\n", None, None, None])
    (launcher.runs / "a" / "device1" / "train.log").mkdir()
    os.mkfifo(launcher.runs / "a" / "device2" / "train.log")
    done = logs(*options)
    assert (done.returncode, done.stdout) == (2, "[0] on\n")
    told = done.stderr.splitlines()[:2]
    assert [line.partition(".log ")[0] for line in told] == [
        f"rank {rank}: runs/a/device{rank}/train" for rank in (1, 2)
    ]
    assert logs("--rank", 1, *options).returncode == 2


@pytest.mark.parametrize("options", [(), ("-f",), ("--merge",), ("-f", "--merge"), ("--grep", "x")], ids=" ".join)
def test_a_long_line_is_one_line_in_a_pipe(recorded, options):
    text = f"begin x\n{'xé' * (1 << 20)}\nend x"
    assert recorded([text, None])("--rank", 0, *options).stdout == f"{text}\n"


def test_a_search_shows_what_it_has_found_while_it_goes_on(recorded, launcher):
    recorded(["the one\n" + "another\n" * 5_000_000])
    search = launcher.start("logs", "--grep", "the o.e", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = search.stdout.readline()
    search.send_signal(signal.SIGINT)
    rest, said = search.communicate()
    assert (first, rest, said.strip(), search.returncode) == (b"the one\n", b"", b"", 130)


def test_what_was_found_is_shown_when_a_search_is_refused_at_last(recorded):
    done = recorded([f"the one\n{'a' * 400}!\n"])("--grep", "the one|(a+)+$")
    assert (done.stdout, done.returncode, done.stderr.count("error: ")) == ("the one\n", 2, 1)


BAR = b"".join(b"\r %4d/1900 |%s|%s" % (n, b"#" * (n % 40), b" " * 40) for n in range(1, 1901)) + b" done"


@pytest.mark.parametrize("options", [(), ("--merge",), ("-f",), ("-f", "--merge"), ("-n", 1), ("--level", "INFO")])
@pytest.mark.parametrize("end", ["\n", "", "\r"])
def test_of_a_long_progress_bar_the_last_state_is_shown(recorded, options, end):
    logs = recorded([f"{BAR.decode()}{end}"])
    assert logs(*options).stdout == f" 1900/1900 |{'#' * 20}|{' ' * 40} done\n"


def test_a_search_finds_what_was_overwritten(recorded):
    found = recorded([BAR.decode()])("--grep", " 7/1900").stdout.splitlines()
    assert len(found) == 1
    assert "/1900" in found[0]


def test_the_last_lines_have_the_time_of_those_before(recorded):
    first = "2026-11-21 10:00:00 A\n  a1\n  a2\n2026-11-21 10:00:05 C\n"
    logs = recorded([first, "2026-11-21 10:00:03 B\n  b1\n  b2\n"])
    merged = logs("--merge", "-n", 2)
    assert merged.stdout == "[0]   a2\n[1]   b1\n[1]   b2\n[0] 2026-11-21 10:00:05 C\n"
    assert merged.stderr == ""
    assert logs("--prefix", "{time} ", "-n", 1, "--rank", 1).stdout == "10:00:03   b2\n"
    assert json.loads(logs("--json", "-n", 1, "--rank", 1).stdout)["time_ns"] is not None


def waiting_bytes(pipe):
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]


def test_ctrl_c_while_nobody_reads_repeats_nothing(recorded, launcher, wait_until):
    recorded(["".join(f"line {number:06d}\n" for number in range(300_000))])
    search = launcher.start("logs", "--grep", "lin.", stdout=subprocess.PIPE)
    first = os.read(search.stdout.fileno(), 1)
    wait_until(lambda: waiting_bytes(search.stdout) > 60_000, "a full pipe")
    search.send_signal(signal.SIGINT)
    lines = (first + search.stdout.read()).decode().splitlines()
    assert search.wait() == 130
    assert lines[:-1] == [f"line {number:06d}" for number in range(len(lines) - 1)]
