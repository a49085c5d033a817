"""A verdict, and the closing words of a run."""

import json
import os
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from launcher.cli.text import summary
from launcher.cli.text.style import Screen
from launcher.cli.text.verdict_text import about_not_exiting, describe_status, headline, rank_list, render
from launcher.core.codec import decode
from launcher.core.events import (
    AgentEnded,
    AttemptStarted,
    Cause,
    Judged,
    NotBegun,
    NotExiting,
    NotRestarting,
    RankEnded,
    RankStarted,
    TimestampedEvent,
)
from launcher.core.records import Cluster, DeviceAssignment, Elastic, Layout, Supervision
from launcher.core.verdict import Confidence, Failure, Role, StackGroup, Verdict
from launcher.preload.frames import HEADER
from launcher.runs.progress import Progress
from tests.servers import server

CAUSE = Failure(
    3, Role.CAUSE, "ValueError: no such word", "0.2 s before any other", 1, "train.py:88 in step", 1,
    "Traceback (most recent call last):\n  deep\nValueError: no such word\n",
)  # fmt: skip


def followed(global_rank, port):
    what = f"RuntimeError: Connection closed by peer [::1]:{port}"
    return Failure(global_rank, Role.CONSEQUENCE, what, f"it lost a peer {global_rank} ms later", 2, status=1)


VERDICT = Verdict(
    3, Confidence.CERTAIN, "not shown where the culprit has a reason",
    (CAUSE, followed(0, 1234), followed(1, 99), Failure(2, Role.CONSEQUENCE, "exit code 4", "late", 3, status=4)),
    (StackGroup((3,), "at data.py:8 in load", ("data.py:8 in load", "train.py:5 in main")), StackGroup((0, 1, 2), "in all_reduce", ("hidden",))),
)  # fmt: skip

# Servers that do not reach each other stand in the headline.
APART = [
    ("two", None, (("h1", "h2"),)),
    ("pairs", None, (("h1", "h3"), ("h1", "h4"), ("h2", "h3"))),
    ("one from all", "h1", (("h1", "h2"), ("h1", "h3"))),
]


def test_servers_between_which_large_packets_are_lost_stand_in_the_headline():
    found = [
        headline(Verdict(None, Confidence.LIKELY, "why", server=server, apart=apart, loses_large=True))
        for _, server, apart in APART
    ]
    assert [one.removeprefix("no single rank is to blame: large packets ") for one in found] == [
        "between servers h1 and h2 are lost",
        "between servers h1 and h3 and 2 more pairs are lost",
        "from or to server h1 are lost",
    ]


def test_verdicts(snapshot):
    other = Failure(1, Role.CAUSE, "ValueError: no such word", "4 ms later", 2, "train.py:88 in step", 1)
    alone = Verdict(None, Confidence.UNSURE, "nobody stands out", (followed(0, 1),))
    many = tuple(Failure(rank, Role.CONSEQUENCE, "x" * (rank + 1), "r") for rank in range(12))
    pairs = {name: Verdict(None, Confidence.LIKELY, "why", server=server, apart=apart) for name, server, apart in APART}
    lost = Verdict(None, Confidence.LIKELY, "why", server="h2", servers=("h1", "h2", "h3"))
    still = Verdict(None, Confidence.LIKELY, "why", stood_still_s=9.4)
    assert {
        "servers lost at once": list(render(lost)),
        "the launcher's machine stood still": list(render(still)),
        "everything": list(render(VERDICT, lambda rank: f"server a, device {rank}")),
        "without traceback": list(render(VERDICT, traceback=False)),
        "two causes": list(render(Verdict(3, Confidence.LIKELY, "r", (CAUSE, other)), traceback=False)),
        "no culprit": list(render(alone)),
        "nothing known of the culprit": list(render(Verdict(4, Confidence.UNSURE, "it never came"))),
        "many ways": list(render(Verdict(None, Confidence.UNSURE, "r", many)))[-1],
        **{name: list(render(verdict)) for name, verdict in pairs.items()},
    } == snapshot
    for verdict in pairs.values():
        assert decode(Verdict, json.loads(json.dumps(asdict(verdict)))) == verdict


def test_a_terminal_shows_little_of_consequences_and_stacks():
    """The lines of `why` and of a pipe are whole."""
    gloo = (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1234"
    )
    follower = Failure(0, Role.CONSEQUENCE, gloo, "it lost a peer 3 ms later", 2, "train.py:9 in <module>", 1)
    stacks = (
        StackGroup((3,), "at a.py:1 in f", tuple(f"a.py:{line} in f" for line in range(8))),
        StackGroup((0,), "", ()),
    )
    verdict = Verdict(3, Confidence.CERTAIN, "", (CAUSE, follower), stacks)

    def rows(screen, **options):
        lines = "\n".join(render(verdict, traceback=False, screen=screen, **options))
        return lines, lines[lines.index("consequences:") :].count("\n") + 1

    brief, brief_rows = rows(Screen(columns=80), brief=True)
    whole, whole_rows = rows(Screen(columns=80))
    assert brief_rows <= whole_rows - 6
    assert "Connection closed" in brief
    assert "it lost a peer" in brief
    assert rows(Screen(), brief=True) == rows(Screen())
    assert "pair.cc:553" in whole


@pytest.mark.parametrize(("columns", "rows", "lines", "repeats"), [
    (80, 24, 21, False), (80, 24, 22, True), (40, 24, 11, True), (80, None, 99, False), (None, None, 99, False),
])  # fmt: skip
def test_a_headline_that_scrolls_off_the_terminal_is_repeated(columns, rows, lines, repeats):
    progress = SimpleNamespace(ended=True, current=SimpleNamespace(verdict=VERDICT))
    screen = Screen(columns=columns, rows=rows)
    told = list(summary.repeated_headline(progress, ["  | " + "x" * 60] * lines, screen))
    assert [headline(VERDICT) in " ".join(line.split()) for line in told if line] == [True] * repeats


def test_ranks_that_fail_alike_and_do_not_exit_share_a_line():
    events = [NotExiting(rank, f"ValueError: bad batch {rank}", 15.0) for rank in range(3)]
    alone, shared = about_not_exiting([*events, NotExiting(3, "KeyError: 'x'", 15.0)])
    assert alone.startswith("rank 3 failed but does not exit: KeyError: 'x'; ")
    assert shared.startswith("ranks 0-2 failed but do not exit: ValueError: bad batch 0; ")


def test_who_misses_the_rank_table_is_told_how_to_get_one():
    """Once for all ranks that raise it, under the last of them; another key is the program's own matter."""

    def lines(key):
        raised = ("KeyError: " + repr(key), "alike", 1, "ms.py:2 in <module>", 1)
        failures = (*(Failure(rank, Role.CAUSE, *raised) for rank in (0, 1)), followed(2, 99))
        return list(render(Verdict(1, Confidence.CERTAIN, "", failures)))

    told = lines("RANK_TABLE_FILE")
    (hint,) = [line for line in told if line.startswith("hint: ")]
    assert "--rank-table" in hint
    assert told.index(hint) == told.index("consequences:") - 1
    assert not any(line.startswith("hint: ") for line in lines("OTHER"))


@pytest.mark.parametrize(("what", "where", "told"), [
    ("E: got 31.", "net.py:18", "E: got 31, at net.py:18"),
    ("E: got 31.", None, "E: got 31."),
    ("E: waiting...", "net.py:18", "E: waiting..., at net.py:18"),
])  # fmt: skip
def test_the_full_stop_of_a_message_does_not_stand_before_its_place(what, where, told):
    failure = Failure(0, Role.CAUSE, what, "r", where=where)
    assert headline(Verdict(0, Confidence.CERTAIN, "", (failure,))) == f"rank 0: {told}"


def lines_full_of(text, *others):
    failure = Failure(0, Role.CAUSE, text, text, 1, text, 1, text)
    groups = (StackGroup((0,), text, (text,)), StackGroup((1, 2), text))
    verdict = Verdict(0, Confidence.CERTAIN, text, (failure, *others), groups)
    return headline(verdict), *render(verdict), *render(verdict, lambda _: text[:20])


def test_no_line_acts_on_the_terminal_or_is_without_a_limit():
    evil = "a\x1b]0;title\x07\x1b[2Jb\nc\x9b1m"
    for line in lines_full_of(evil, Failure(1, Role.CONSEQUENCE, evil, evil)):
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line), repr(line)
    assert max(map(len, lines_full_of("x" * 5000))) < 1020


def frame(file, *lines):
    return [f'  File "{file}", line 7, in step', *(f"    {line}" for line in lines)]


def excerpt_of(traceback):
    """The lines of a traceback that a verdict shows."""
    verdict = replace(VERDICT, failures=(replace(CAUSE, traceback="\n".join(traceback)),))
    return [line.removeprefix("  | ") for line in render(verdict) if line.startswith("  | ")]


LIBRARY = frame("/v/lib/python3.11/site-packages/mindspore/nn/cell.py", "return self.construct(*args)", "^^^^")
USERS = "/home/me/net.py"
STATEMENT = [f"x = {number}" for number in range(30)]


@pytest.mark.parametrize(("frames", "first", "left_out"), [
    ([*frame(USERS, "x = fc(x)"), *LIBRARY * 3], f'  File "{USERS}", line 7, in step', None),
    ([*LIBRARY, *frame(USERS, "x = fc(x)"), *LIBRARY * 6], f'  File "{USERS}", line 7, in step', 12),
    ([*frame(USERS, *STATEMENT), *LIBRARY * 2], f'  File "{USERS}", line 7, in step', 29),
    (LIBRARY * 6, "    return self.construct(*args)", None),
])  # fmt: skip
def test_the_line_of_the_users_program_is_shown_above_those_of_libraries(frames, first, left_out):
    """As of MindSpore in PyNative mode, whose own frames are many. The last lines are shown in any case."""
    shown = excerpt_of(["Traceback (most recent call last):", *frames, "ValueError: no such shape"])
    assert len(shown) <= 12
    assert (shown[0], shown[-1]) == (first, "ValueError: no such shape")
    assert [line for line in shown if "left out" in line] == ([f"  [{left_out} lines left out]"] if left_out else [])


@pytest.mark.parametrize(("notes", "first"), [(2, "KeyError: 'vocabulary'"), (30, "note 28")])
def test_a_note_is_shown_below_its_exception(notes, first):
    """A cause whose notes alone would be among the last lines; of many notes the last are shown."""
    cause = [*frame(USERS, "load()"), "KeyError: 'vocabulary'", *(f"note {number}" for number in range(notes))]
    link = ["", "The above exception was the direct cause of the following exception:", ""]
    frames = [*frame(USERS, "start()"), *frame(USERS, "build()")]
    shown = excerpt_of(
        [HEADER.strip(), *cause, *link, HEADER.strip(), *frames, "ValueError: no model", "see the cause"]
    )
    assert (shown[0], shown[-1]) == (first, "see the cause")


def test_the_line_of_the_users_program_is_found_in_a_group_of_exceptions():
    """As asyncio's TaskGroup raises; there a margin stands before each line."""
    inside = [f"    | {line}" for line in [*frame(USERS, "await load()"), *LIBRARY * 6, "OSError: disk full"]]
    head = ["  + Exception Group Traceback (most recent call last):", "  +-+---------------- 1 ----------------"]
    shown = excerpt_of([*head, *inside])
    assert shown[:2] == [f'    |   File "{USERS}", line 7, in step', "    |     await load()"]
    assert shown[2].endswith("lines left out]")


def test_how_a_process_ended():
    words = {0: "exit code 0", 7: "exit code 7", -9: "SIGKILL (signal 9)", -77: "signal 77"}
    words |= {137: "exit code 137 (128 + SIGKILL)", 129: "exit code 129 (128 + SIGHUP)"}
    words |= {status: f"exit code {status}" for status in (128, 193, 255)}
    assert {status: describe_status(status) for status in words} == words
    assert describe_status(192).startswith("exit code 192 (128 + SIGRTMAX")
    failure = Failure(0, Role.CAUSE, "exit code 137", "it was first", 1, status=137)
    lines = list(render(Verdict(0, Confidence.LIKELY, "r", (failure,))))
    assert lines == ["rank 0: exit code 137 (128 + SIGKILL)", "  likely: it was first"]
    assert (rank_list([3]), rank_list([2, 7, 0, 1])) == ("rank 3", "ranks 0-2,7")


def test_ranks_that_failed_at_different_places_stand_apart():
    def timed_out(global_rank, line):
        what = f"RuntimeError: timed out after {global_rank} ms"
        return Failure(global_rank, Role.CONSEQUENCE, what, "late", 2, f"train.py:{line} in step", 1)

    followed = (timed_out(0, 7), timed_out(1, 9), timed_out(2, 7))
    lines = list(render(Verdict(3, Confidence.CERTAIN, "why", (CAUSE, *followed))))
    assert [line.split(":")[0].strip() for line in lines[lines.index("consequences:") + 1 :]] == ["ranks 0,2", "rank 1"]


ROOMY = SimpleNamespace(f_bavail=10**6, f_frsize=4096, f_files=10**6, f_favail=10**5)


def told(rank_count, *events):
    progress = Progress(rank_count)
    for number, event in enumerate(events):
        progress.take(TimestampedEvent(number, 0, event))
    return progress


@pytest.mark.parametrize(
    ("found", "full"),
    [({}, False), ({"f_bavail": 15}, True), ({"f_favail": 0}, True), ({"f_files": 0, "f_favail": 0}, False)],
    ids=["roomy", "no bytes", "no files", "files are not counted"],
)
def test_a_full_file_system_is_named(tmp_path, monkeypatch, found, full):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**vars(ROOMY), **found}))
    spec = SimpleNamespace(run_dir=tmp_path, ranks=Cluster.local(1).servers, stdin=None, offers_stdin=True)
    judged = Judged(Verdict(None, Confidence.UNSURE, "r"))
    failed = told(1, RankStarted(0, 7), RankEnded(0, 7, 1), judged, AgentEnded(Cause.FAILED, 1))
    lines = list(summary.render(failed, spec, tmp_path))
    assert (f"the file system of {tmp_path} is full" in lines) == full


def closing_words(progress, tmp_path, ranks=(), *server):
    spec = SimpleNamespace(run_dir=tmp_path, ranks=ranks, stdin=None, offers_stdin=True)
    return [line.replace(str(tmp_path), "<dir>") for line in summary.render(progress, spec, tmp_path, *server)]


def test_closing_words(tmp_path, snapshot):
    failed = AgentEnded(Cause.FAILED, 1)
    lost = Judged(Verdict(None, Confidence.CERTAIN, "server h2 is gone", server="h2"))
    not_begun = NotBegun("server h2 did not come", "is it there?")
    in_vain = told(1, RankStarted(0, 7), lost, RankEnded(0, 7, -15), not_begun, failed)
    started = [RankStarted(rank, 7 + rank) for rank in range(3)]
    lost_server = told(4, *started, lost, RankEnded(0, 7, -15), RankEnded(1, 8, -15), failed)
    coordinator = told(2, RankStarted(2, 7), RankEnded(2, 7, -15), AgentEnded(Cause.COORDINATOR_LOST, 1))
    again = [NotRestarting("it fails at once"), Judged(Verdict(None, Confidence.UNSURE, "r")), failed]
    restarts = {
        f"{count} restarts": told(1, *(AttemptStarted(number, 1) for number in range(1, count + 1)), *again)
        for count in (0, 2)
    }
    assert {
        "restart in vain": closing_words(in_vain, tmp_path),
        "a server lost": closing_words(lost_server, tmp_path),
        "the coordinator lost": closing_words(coordinator, tmp_path, (SimpleNamespace(server_id="h1"),)),
        **{name: closing_words(progress, tmp_path) for name, progress in restarts.items()},
    } == snapshot


@pytest.mark.parametrize("culprit", [0, 2], ids=["elsewhere", "here"])
def test_one_server_of_several_speaks_for_its_own_ranks(tmp_path, culprit, snapshot):
    """Ranks 2 and 3 are here: of the others there is neither a process nor a log."""
    verdict = Verdict(culprit, Confidence.CERTAIN, "r", (Failure(culprit, Role.CAUSE, "x", "y", status=1),))
    ended = (RankEnded(2, 7, 1), RankEnded(3, 8, -15), AgentEnded(Cause.FAILED, 1))
    progress = told(2, RankStarted(2, 7), RankStarted(3, 8), Judged(verdict), *ended)
    ranks = [SimpleNamespace(server_id=f"h{at // 2}", server_index=at // 2, device_id=at % 2) for at in range(4)]
    assert closing_words(progress, tmp_path, ranks, 1) == snapshot


@pytest.mark.parametrize(("culprit", "is_here"), [(0, False), (1, True)], ids=["elsewhere", "here"])
def test_whose_rank_it_was_is_known_by_its_attempt(tmp_path, culprit, is_here):
    """In an elastic run that goes on without the second device, rank 1 is on the second server."""
    verdict = Verdict(culprit, Confidence.CERTAIN, "r", (Failure(culprit, Role.CAUSE, "x", "y", status=1),))
    attempt = AttemptStarted(1, 1, DeviceAssignment((0, 2, 3), Layout(dp=3)))
    progress = told(2, attempt, RankStarted(1, 7), RankEnded(1, 7, 1), Judged(verdict), AgentEnded(Cause.FAILED, 1))
    spec = SimpleNamespace(
        stdin=None,
        offers_stdin=True,
        run_dir=tmp_path,
        cluster=Cluster((server("h1"), server("h2", 2))),
        ranks=[
            SimpleNamespace(server_id=f"h{1 + rank // 2}", server_index=rank // 2, device_id=0) for rank in range(4)
        ],
        supervision=Supervision(elastic=Elastic((0, 0, 1, 1), ())),
    )
    lines = list(summary.render(progress, spec, tmp_path, 1))
    assert any("process 7" in line for line in lines) == is_here
