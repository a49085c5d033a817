"""A verdict in words."""

import json
from dataclasses import asdict

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

# Servers that do not reach each other stand in the headline.
APART = [
    ("two", None, (("h1", "h2"),)),
    ("pairs", None, (("h1", "h3"), ("h1", "h4"), ("h2", "h3"))),
    ("one from all", "h1", (("h1", "h2"), ("h1", "h3"))),
]


def test_verdicts(snapshot):
    """The culprit comes first; those that followed alike share a line; numbers in messages make no difference."""
    other = Failure(1, Role.CAUSE, "ValueError: no such word", "4 ms later", 2, "train.py:88 in step", 1)
    alone = Verdict(None, Confidence.UNSURE, "nobody stands out", (followed(0, 1),))
    many = tuple(Failure(rank, Role.CONSEQUENCE, "x" * (rank + 1), "r") for rank in range(12))
    pairs = {name: Verdict(None, Confidence.LIKELY, "why", server=server, apart=apart) for name, server, apart in APART}
    assert {
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


def lines_full_of(text, *others):
    """The headline and all lines of a verdict in which every text is this one."""
    failure = Failure(0, Role.CAUSE, text, text, 1, text, 1, text)
    groups = (StackGroup((0,), text, (text,)), StackGroup((1, 2), text))
    verdict = Verdict(0, Confidence.CERTAIN, text, (failure, *others), groups)
    return headline(verdict), *render(verdict), *render(verdict, lambda _: text[:20])


def test_no_line_acts_on_the_terminal_or_is_without_a_limit():
    evil = "a\x1b]0;title\x07\x1b[2Jb\nc\x9b1m"
    for line in lines_full_of(evil, Failure(1, Role.CONSEQUENCE, evil, evil)):
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line), repr(line)
    assert max(map(len, lines_full_of("x" * 5000))) < 1020


def test_how_a_process_ended():
    """The codes of shells are explained; ranks are listed in order."""
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
    """Numbers in what was said make no difference; the line where it happened does."""

    def timed_out(global_rank, line):
        what = f"RuntimeError: timed out after {global_rank} ms"
        return Failure(global_rank, Role.CONSEQUENCE, what, "late", 2, f"train.py:{line} in step", 1)

    followed = (timed_out(0, 7), timed_out(1, 9), timed_out(2, 7))
    lines = list(render(Verdict(3, Confidence.CERTAIN, "why", (CAUSE, *followed))))
    assert [line.split(":")[0].strip() for line in lines[lines.index("consequences:") + 1 :]] == ["ranks 0,2", "rank 1"]
