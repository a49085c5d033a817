"""A verdict in words."""

import json
from dataclasses import asdict

import pytest

from launcher.cli.text.verdict_text import describe_status, headline, rank_list, render
from launcher.core.codec import decode
from launcher.core.verdict import Confidence, Failure, Role, StackGroup, Verdict

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


def test_verdicts(snapshot):
    """The culprit comes first; those that followed alike share a line; numbers in messages make no difference."""
    other = Failure(1, Role.CAUSE, "ValueError: no such word", "4 ms later", 2, "train.py:88 in step", 1)
    alone = Verdict(None, Confidence.UNSURE, "nobody stands out", (followed(0, 1),))
    many = tuple(Failure(rank, Role.CONSEQUENCE, "x" * (rank + 1), "r") for rank in range(12))
    assert {
        "everything": list(render(VERDICT, lambda rank: f"server a, device {rank}")),
        "without traceback": list(render(VERDICT, traceback=False)),
        "two causes": list(render(Verdict(3, Confidence.LIKELY, "r", (CAUSE, other)), traceback=False)),
        "no culprit": list(render(alone)),
        "nothing known of the culprit": list(render(Verdict(4, Confidence.UNSURE, "it never came"))),
        "many ways": list(render(Verdict(None, Confidence.UNSURE, "r", many)))[-1],
    } == snapshot


def test_who_misses_the_rank_table_is_told_how_to_get_one():
    """Once for all ranks that raise it, under the last of them; another key is the program's own matter."""

    def lines(key):
        raised = [
            Failure(rank, Role.CAUSE, f"KeyError: '{key}'", "alike", 1, "ms.py:2 in <module>", 1) for rank in (0, 1)
        ]
        return list(render(Verdict(1, Confidence.CERTAIN, "", (*raised, followed(2, 99)))))

    told = lines("RANK_TABLE_FILE")
    (hint,) = [line for line in told if line.startswith("hint: ")]
    assert "--rank-table" in hint
    assert told.index(hint) == told.index("consequences:") - 1
    assert not any(line.startswith("hint: ") for line in lines("OTHER"))


def test_nothing_acts_on_the_terminal():
    evil = "a\x1b]0;title\x07\x1b[2Jb\nc\x9b1m"
    failure = Failure(0, Role.CAUSE, evil, evil, 1, evil, 1, evil)
    follower = Failure(1, Role.CONSEQUENCE, evil, evil)
    groups = (StackGroup((0,), evil, (evil,)), StackGroup((1, 2), evil))
    verdict = Verdict(0, Confidence.CERTAIN, evil, (failure, follower), groups)
    for line in (headline(verdict), *render(verdict, lambda _: evil)):
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line), repr(line)


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit code 0"), (7, "exit code 7"), (-9, "SIGKILL (signal 9)"), (-77, "signal 77")]
)
def test_how_a_process_ended(status, words):
    assert describe_status(status) == words


def test_ranks_are_listed_in_order():
    assert (rank_list([3]), rank_list([2, 7, 0, 1])) == ("rank 3", "ranks 0-2,7")


def test_the_codes_of_shells_are_explained():
    shown = {status: describe_status(status) for status in (128, 129, 137, 192, 193, 255)}
    assert [shown[137], shown[129]] == ["exit code 137 (128 + SIGKILL)", "exit code 129 (128 + SIGHUP)"]
    assert shown[192].startswith("exit code 192 (128 + SIGRTMAX")
    assert [shown[128], shown[193], shown[255]] == ["exit code 128", "exit code 193", "exit code 255"]
    failure = Failure(0, Role.CAUSE, "exit code 137", "it was first", 1, status=137)
    lines = list(render(Verdict(0, Confidence.LIKELY, "r", (failure,))))
    assert lines == ["rank 0: exit code 137 (128 + SIGKILL)", "  likely: it was first"]


def test_no_line_is_without_a_limit():
    failure = Failure(0, Role.CAUSE, "x" * 5000, "y" * 5000, 1, "z" * 5000, 1, "t" * 5000)
    verdict = Verdict(0, Confidence.CERTAIN, "r", (failure,), (StackGroup((0,), "s" * 5000, ("f" * 5000,)),))
    for line in (headline(verdict), *render(verdict)):
        assert len(line) < 1020, line


def test_ranks_that_failed_at_different_places_stand_apart():
    """Numbers in what was said make no difference; the line where it happened does."""

    def timed_out(global_rank, line):
        what = f"RuntimeError: timed out after {global_rank} ms"
        return Failure(global_rank, Role.CONSEQUENCE, what, "late", 2, f"train.py:{line} in step", 1)

    followed = (timed_out(0, 7), timed_out(1, 9), timed_out(2, 7))
    lines = list(render(Verdict(3, Confidence.CERTAIN, "why", (CAUSE, *followed))))
    assert [line.split(":")[0].strip() for line in lines[lines.index("consequences:") + 1 :]] == ["ranks 0,2", "rank 1"]


@pytest.mark.parametrize(
    ("server", "apart"),
    [
        (None, [("h1", "h2")]),
        (None, [("h1", "h3"), ("h1", "h4"), ("h2", "h3")]),
        ("h1", [("h1", "h2"), ("h1", "h3")]),
    ],
    ids=["two", "pairs", "one from all"],
)
def test_servers_that_do_not_reach_each_other_stand_in_the_headline(server, apart, snapshot):
    verdict = Verdict(None, Confidence.LIKELY, "why", server=server, apart=tuple(apart))
    assert list(render(verdict)) == snapshot
    assert decode(Verdict, json.loads(json.dumps(asdict(verdict)))) == verdict
