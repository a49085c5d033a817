"""Merge equal lines of several ranks into one."""

import random
from collections import Counter
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.logs import collapse as collapse_module
from launcher.logs import group_key as alike_module
from launcher.logs.collapse import MAX_LINES_OF_RANK, WINDOW_NS, Collapser, collapse, first_in_common
from launcher.logs.group_key import Alike, Kinds, folded
from launcher.logs.lines import Line
from launcher.logs.times import Clock

from .conftest import GROUP, OF_DATASET, OF_NETWORK, put


def line(global_rank, text):
    return Line(global_rank, 0, text.encode())


def in_turns(texts_of_rank):
    """Return one line of each rank in turn, as from ranks of about equal speed."""
    ranks = [[line(rank, text) for text in texts] for rank, texts in texts_of_rank.items()]
    return [each for turn in zip_longest(*ranks) for each in turn if each is not None]


def collapsed(*texts_of_ranks):
    return list(map(str, collapse(in_turns(dict(enumerate(texts_of_ranks))), range(len(texts_of_ranks)))))


# --- logs that have ended ---


LAST = ["last", "loss 0.5", "loss 1.5"]


@pytest.mark.parametrize(("texts", "seen"), [
    ([["start", "loss is 9.87"], ["start", "loss is 9.91"]], "[0-1] start|[0-1] loss is 9.87..9.91"),
    (["acd", "abcd", "acd"], "[0-2] a|[1] b|[0-2] c|[0-2] d"),
    (["abc", "axc", "abc"], "[0-2] a|[0,2] b|[1] x|[0-2] c"),
    (["abc", "ac", "abc"], "[0-2] a|[0,2] b|[0-2] c"),
    (["-a-b-", "-a-b-"], "[0-1] -|[0-1] a|[0-1] -|[0-1] b|[0-1] -"),
    (["xxx", "xx"], "[0-1] x|[0-1] x|[0] x"),
    (["-a-b", "--a-b"], "[0-1] -|[1] -|[0-1] a|[0-1] -|[0-1] b"),
    ([["a", "", "b", ""], ["", "a", "", "b", ""]], "[1] |[0-1] a|[0-1] |[0-1] b|[0-1] "),
    (["abc", "def"], "[0] a|[1] d|[0] b|[1] e|[0] c|[1] f"),
    ([["first"], ["first"], LAST, LAST], "[0-1] first|[2-3] last|[2-3] loss 0.5|[2-3] loss 1.5"),
])  # fmt: skip
def test_what_ranks_say_alike_is_one_line(texts, seen):
    assert collapsed(*texts) == seen.split("|")


def traceback(rank, line, message, mark=""):
    frames = ["Traceback (most recent call last):", f'  File "ddp.py", line {line}, in <module>', "    f(7)", message]
    return ["step 3", *(f"{mark.format(rank)}{each}" for each in frames), f"ended after {rank}.5 s"]


def test_tracebacks_that_differ_stay_apart():
    told = collapsed(
        traceback(0, 16, "RuntimeError: <A at 0x7f01>, pid 11"),
        traceback(1, 16, "RuntimeError: <A at 0x7f02>, pid 12"),
        traceback(2, 18, "RuntimeError: <A at 0x7f01>, pid 11"),
    )
    assert told == [
        "[0-2] step 3",
        "[0-1] Traceback (most recent call last):",
        '[0-1]   File "ddp.py", line 16, in <module>',
        "[0-1]     f(7)",
        "[0] RuntimeError: <A at 0x7f01>, pid 11",
        "[1] RuntimeError: <A at 0x7f02>, pid 12",
        "[2] Traceback (most recent call last):",
        '[2]   File "ddp.py", line 18, in <module>',
        "[2]     f(7)",
        "[2] RuntimeError: <A at 0x7f01>, pid 11",
        "[0-2] ended after 0.5..2.5 s",
    ]


@pytest.mark.parametrize(("mark", "seen"), [("[rank{}]: ", ""), ("[worker {}]: ", "[worker 0..1]: "), ("", "")])
def test_the_same_traceback_is_one_behind_what_is_put_before_it(mark, seen):
    """Every rank has its own number there; what torch puts there says no more than what is shown before the line."""
    told = collapsed(*(traceback(rank, 16, "ValueError: 7", mark) for rank in range(2)))
    assert told[2:5] == [
        f'[0-1] {seen}  File "ddp.py", line 16, in <module>',
        f"[0-1] {seen}    f(7)",
        f"[0-1] {seen}ValueError: 7",
    ]


CAUSE = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize("mark", ["[rank{}]: ", ""])
def test_a_chain_of_exceptions_is_one_piece(mark):
    def failing(rank, line):
        first = traceback(rank, line, "OSError: no", mark)[1:-1]
        then = traceback(rank, 40, "ValueError: two", mark)[1:-1]
        more = [f"{mark.format(rank)}  lines"]
        return [*first, *more, "", f"{mark.format(rank)}{CAUSE}", "", *then, *more, "the end"]

    told = collapsed(failing(0, 16), failing(1, 18), failing(2, 16))
    assert [each.partition(" ")[0] for each in told] == ["[0,2]"] * 13 + ["[1]"] * 13 + ["[0-2]"]
    assert [told[5], told[6], told[7], told[12]] == ["[0,2] ", f"[0,2] {CAUSE}", "[0,2] ", "[0,2]   lines"]


def test_a_group_of_exceptions_is_one_piece():
    told = collapsed(GROUP.splitlines(), GROUP.replace("88", "87").splitlines())
    assert [each[:3] for each in told] == ["[0]"] * 12 + ["[1]"] * 12


@pytest.mark.parametrize("text", [OF_NETWORK, OF_DATASET])
def test_an_exception_with_sections_is_one_piece(text):
    lines = text.splitlines()
    told = collapsed([*lines, "step 2"], [f"other {number}" for number in range(8)])
    assert [each[4:] for each in told if each.startswith("[0]")] == [*lines, "step 2"]
    first = told.index(f"[0] {lines[0]}")
    assert told[first : first + len(lines)] == [f"[0] {each}" for each in lines]


def test_a_rank_that_lost_a_line_does_not_lag_behind_ever_after():
    steps = [f"step {step} loss {step * 0.7:.2f}" for step in range(1, 50)]
    lines = collapsed(steps, steps[1:], steps)
    assert lines[-40:] == [f"[0-2] {text}" for text in steps[-40:]]
    lines = collapsed(steps, [*steps[:20], *steps[25:]], steps)
    assert lines == [f"[{'0-2' if number not in range(20, 25) else '0,2'}] {text}" for number, text in enumerate(steps)]


def training(rank, generator, steps):
    """Yield the lines of a rank in a realistic training: some only on this rank, and with different numbers."""
    yield f"rank {rank} of 8, device cuda:{rank}"
    for step in range(1, steps):
        yield f"epoch: 1 step: {step}, loss is {9 - step / 99 + generator.random() / 10:.4f}, {generator.randrange(9000)} ms"
        if step % 10 == 0 and rank == 0:
            yield f"saved step {step}"
        if step % 25 == rank:
            yield f"slow: {generator.random():.2f} s for data"
            yield "  more about it"
        if step % 30 == 0:
            yield f"validation loss {generator.random():.3f}"


def test_a_training_of_eight_ranks():
    texts = {rank: list(training(rank, random.Random(rank), 300)) for rank in range(8)}
    lines = list(collapse(in_turns(texts), texts))
    by_ranks = Counter(len(each.ranks) for each in lines)
    common = 1 + 299 + 9
    assert by_ranks == {8: common, 1: sum(map(len, texts.values())) - 8 * common}


RAISED = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "Error: no", CAUSE]
SAID = ["a", "b", "step 1", "step 2", "x 1.5", "", *RAISED]
TEXTS = st.lists(st.lists(st.sampled_from(SAID), max_size=12), min_size=1, max_size=4)


def assert_whole(lines, texts):
    """Check that no line is lost, and that each rank's lines are in order. Numbers may have become ranges."""
    for rank, some in enumerate(texts):
        assert [one.text[:1] for one in lines if rank in one.ranks] == [text[:1] for text in some]
    assert all(list(each.ranks) == sorted(set(each.ranks)) for each in lines)


@settings(max_examples=50)
@given(TEXTS)
def test_no_line_is_lost_and_none_overtakes_one_of_its_rank(texts):
    assert_whole(list(collapse(in_turns(dict(enumerate(texts))), range(len(texts)))), texts)


# --- while ranks write ---

HEAD = "[0] Traceback (most recent call last):"


@pytest.mark.parametrize(("ranks", "turns"), [
    # It is shown when every rank has written it, and no sooner, unless it has waited for long enough.
    (3, [("0a 1a", 0, ""), ("2a 0b", 1, "[0-2] a"), ("", WINDOW_NS, ""), ("", WINDOW_NS + 1, "[0] b"), ("1b", None, "[1] b")]),
    # A rank that has ended is not waited for, until it writes again, after a restart.
    (3, [("0a 1a 2-", 0, "[0-1] a"), ("2again", 0, ""), ("", None, "[2] again")]),
    # Lines behind tell at once who says more; where they do not, the ranks that differ get time to come together.
    (2, [("0a 1more 1a", 0, "[1] more|[0-1] a"), ("0b 1warning", 1, ""), ("1b", 2, "[1] warning|[0-1] b")]),
    # One rank may tell for those that say the same: who has written more already knows what comes.
    (3, [("0a 1a 1b 2b", 0, "[0-1] a")]),
    (3, [("1a 0a 0b 2b", 0, "[0-1] a")]),
    # That two ranks both wrote a blank line says nothing about the lines before it.
    (2, [("0a 0_ 1x 1_", 0, ""), ("1a", 1, "[1] x|[1] |[0-1] a")]),
    # A traceback is waited for to its end, which the next line shows, or the end of its rank; for long enough.
    (1, [("0Traceback~(most~recent~call~last):", 0, ""), ("0~~f()", 1, ""), ("0E:~no", 2, ""), ("0b", 3, f"{HEAD}|[0]   f()|[0] E: no|[0] b")]),
    (1, [("0Traceback~(most~recent~call~last): 0~~f() 0E:~no", 0, ""), ("0-", 1, f"{HEAD}|[0]   f()|[0] E: no")]),
    (1, [("0Traceback~(most~recent~call~last): 0~~f()", 0, ""), ("", WINDOW_NS, f"{HEAD}|[0]   f()"), ("0E:~no", WINDOW_NS, ""),
         ("0b", WINDOW_NS, "[0] E: no|[0] b")]),
], ids=["common", "ended", "behind", "one for others", "another for others", "blank", "traceback", "last words", "late words"])  # fmt: skip
def test_when_a_line_is_shown(ranks, turns):
    """In turns: what ranks write (or that one has ended, `2-`), the time (None: all have ended), and what is shown then."""
    collapser = Collapser(range(ranks))
    for written, now, seen in turns:
        for rank, text in ((int(each[0]), each[1:]) for each in written.split()):
            if text == "-":
                collapser.end(rank)
            else:
                collapser.put(line(rank, text.strip("_").replace("~", " ")))
        assert "|".join(map(str, collapser.flush() if now is None else collapser.take(now))) == seen


def test_a_rank_that_lags_behind_is_shown_by_itself():
    collapser = Collapser([0, 1, 2])
    seen = []
    for step in range(40):
        put(collapser, line(0, f"step {step}"), line(1, f"step {step}"))
        if step >= 10:
            put(collapser, *(line(2, f"step {late}") for late in range(0 if step == 10 else step, step + 1)))
        seen += map(str, collapser.take(step * WINDOW_NS // 4))
    seen += map(str, collapser.flush())
    assert seen[0] == "[0-1] step 0"
    assert seen[-20:] == [f"[0-2] step {step}" for step in range(20, 40)]


def test_no_line_waits_for_more_than_two_windows():
    generator = random.Random(3)
    collapser = Collapser(range(4))
    put_at, waited = {rank: [] for rank in range(4)}, []
    for now in range(0, 40 * WINDOW_NS, WINDOW_NS // 10):
        for rank in range(4):
            for _ in range(generator.choice([0, 0, 1, 2])):
                collapser.put(line(rank, generator.choice(["a", "b", "c", "x 1", "x 2", ""])))
                put_at[rank].append(now)
        for each in collapser.take(now):
            waited += [now - put_at[rank].pop(0) for rank in each.ranks]
    assert max(waited) <= 2 * WINDOW_NS
    assert len(waited) > 1000


@pytest.mark.parametrize(("count", "chars"), [(MAX_LINES_OF_RANK + 50, 1), (400, 1 << 16)])
def test_too_many_lines_do_not_wait(count, chars):
    collapser = Collapser([0, 1])
    put(collapser, *(line(0, "x" * chars) for _ in range(count)))
    given = len(collapser.take(0))
    assert given >= 50
    assert count - given <= MAX_LINES_OF_RANK
    assert (count - given) * chars <= collapse_module.MAX_CHARS
    assert len(collapser.flush()) == count - given
    assert collapser._chars == 0


@settings(max_examples=50)
@given(TEXTS, st.data())
def test_live_as_afterwards_no_line_is_lost_or_overtakes(texts, data):
    collapser = Collapser(range(len(texts)))
    left = {rank: list(some) for rank, some in enumerate(texts)}
    lines, now = [], 0
    while any(left.values()):
        rank = data.draw(st.sampled_from([rank for rank, some in left.items() if some]))
        collapser.put(line(rank, left[rank].pop(0)))
        now += data.draw(st.sampled_from([0, WINDOW_NS // 3, WINDOW_NS]))
        lines += collapser.take(now)
    assert_whole(lines + collapser.flush(), texts)


@pytest.mark.parametrize(("ours", "theirs", "pair"), [
    ("abc", "abc", (0, 0)), ("abc", "xabc", (0, 1)), ("xabc", "abc", (1, 0)), ("xbc", "abc", (1, 1)), ("abc", "xyz", None),
    ("cab", "abc", (1, 0)), ("", "a", None), ([None, "a"], [None, "a"], (1, 1)), ([None], [None], None),
    (["7", "slow", "more"], ["slow", "more", "7"], (0, 2)),
])  # fmt: skip
def test_where_two_sequences_come_together(ours, theirs, pair):
    """By the longest sequence that both have, in which a line that counts weighs most; what is None does not count."""
    identities = [[each and (each, ("26",) if each == "7" else ()) for each in some] for some in (ours, theirs)]
    assert first_in_common(*identities) == pair


# --- restarts and stragglers ---


def test_lines_of_different_attempts_are_not_one():
    """A rank that has said less before the restart is not taken to catch up after it."""
    lines = [Line(0, 0, b"start", attempt=0), Line(0, 6, b"start", attempt=1), Line(1, 0, b"start", attempt=1)]
    assert list(map(str, collapse(lines, [0, 1]))) == ["[0] start", "[0-1] start"]


def at(global_rank, minute, text):
    return Clock(0).stamped(line(global_rank, f"2026-11-21 12:{minute:02}:00 {text}"))


def test_a_straggler_stands_by_itself():
    """What it says minutes after the others is worth its own time; then it is in step again."""
    lines = [at(rank, 0, "ready") for rank in range(3)] + [at(rank, 1, "on") for rank in range(3)]
    lines += [at(3, 10, "ready"), at(3, 10, "on"), *(at(rank, 10, "step") for rank in range(4))]
    told = list(map(str, collapse(lines, range(4))))
    assert sorted(told) == [
        "[0-2] 2026-11-21 12:00:00 ready", "[0-2] 2026-11-21 12:01:00 on", "[0-3] 2026-11-21 12:10:00 step",
        "[3] 2026-11-21 12:10:00 on", "[3] 2026-11-21 12:10:00 ready",
    ]  # fmt: skip
    assert told[-1] == "[0-3] 2026-11-21 12:10:00 step"


@pytest.mark.parametrize(("minute", "ranks"), [(2, [(0,), (1, 2)]), (1, [(0, 1, 2)])])
def test_a_rank_that_was_first_by_far_stands_by_itself(minute, ranks):
    lines = [at(0, 0, "ready"), at(1, minute, "ready"), at(2, minute, "ready")]
    assert [each.ranks for each in collapse(lines, range(3))] == ranks


# --- lines that say the same, and what becomes of their numbers ---


def lines_of(*texts, kinds=None):
    kinds = kinds or Kinds()
    return [Alike(Clock(0).stamped(line(rank, text)), kinds) for rank, text in enumerate(texts)]


RED = "\x1b[31mloss 1\x1b[0m"


@pytest.mark.parametrize(("texts", "one"), [
    (["loss is 9.87", "loss is 9.91", "loss is 9.9"], "loss is 9.87..9.91"),
    (["loss is 9.870", "loss is 9.91"], "loss is 9.870..9.91"), (["step 7, loss 10", "step 7, loss 9"], "step 7, loss 9..10"),
    (["loss 9", "loss 9.5"], "loss 9..9.5"), (["x -3", "x -1", "x 2"], "x -3..2"), (["x=-0.5", "x=0.25"], "x=-0.5..0.25"),
    (["lr 1e-4", "lr 3e-5"], "lr 3e-5..1e-4"), (["at 0x7f1a", "at 0x7f0c"], "at 0x7f0c..0x7f1a"),
    (["[rank0]: cuda:0", "[rank1]: cuda:1"], "cuda:0..1"), (["took 3ms.", "took 12ms."], "took 3..12ms."),
    (["1,900 tokens", "2,100 tokens", "950 tokens"], "950..2,100 tokens"), (["a-1 to a-2", "a-1 to a-3"], "a-1 to a-2..3"),
    (["1.0 x 2", "1.00 x 3"], "1.0 x 2..3"), (["same", "same"], "same"), (["", ""], ""),
    # A place in a source file stays as it is; what a program puts before it may differ.
    ([f'[worker{rank}]:   File "/tmp/7/ddp.py", line 16, in f' for rank in (0, 1)],
     '[worker0..1]:   File "/tmp/7/ddp.py", line 16, in f'),
    (["train.py:88: loss 1.5", "train.py:88: loss 1.7"], "train.py:88: loss 1.5..1.7"),
    # Times differ always, and a range of them would say little.
    (["2026-11-21 12:00:00,999 INFO loss 1.5", "2026-11-21 12:00:01,002 INFO loss 1.7"],
     "2026-11-21 12:00:00,999 INFO loss 1.5..1.7"),
    # Colours do not make lines different, and stay where nothing is folded.
    ([RED, RED], RED),
    ([RED, RED, "loss 1"], "loss 1"),
    ([RED, "loss 1", "\x1b[31mloss 2\x1b[0m"], "loss 1..2"),
])  # fmt: skip
def test_numbers_that_differ_become_ranges(texts, one):
    lines = lines_of(*texts)
    assert len({line.identity for line in lines}) == 1
    assert folded(lines) == one


@pytest.mark.parametrize("texts", [
    ["loss is 9.87", "loss is nan"], ["a 1", "b 1"], ["1 2", "1 2 3"], ["10.0.0.1 is up", "10.0.0.2 is up"],
    ["torch 2.1.0", "torch 2.1.1"], ["id 12345678901234567890", "id 12345678901234567891"],
    ["x" * 3000 + "1", "x" * 3000 + "2"], ["I1121 12:00:00 x", "E1121 12:00:00 x"],
    ['  File "ddp.py", line 16, in <module>', '  File "ddp.py", line 18, in <module>'],
    ["[rank0]: in train.py:88: loss 1", "[rank1]: in train.py:90: loss 2"],
])  # fmt: skip
def test_what_is_not_alike(texts):
    first, second = lines_of(*texts)
    assert first.identity != second.identity


def test_a_number_that_counts_must_be_equal():
    """Once it is seen to grow evenly, and to be common to ranks: step 7 of one is not step 8 of another."""
    kinds = Kinds()
    for step in range(1, 6):
        lines = lines_of(
            *(f"step {step}, loss {step * 0.37 + rank}, {rank * 7 + step} ms" for rank in range(4)), kinds=kinds
        )
        assert len({line.identity for line in lines}) == 1
    early, late = lines_of("step 6, loss 1.5, 5 ms", "step 7, loss 1.5, 5 ms", kinds=kinds)
    assert early.identity != late.identity


def test_numbers_of_each_rank_alone_do_not_count():
    """Each rank reads every fourth sample: no two have the same, and they are alike all the same."""
    kinds = Kinds()
    for step in range(10):
        lines = lines_of(*(f"sample {4 * step + rank}" for rank in range(4)), kinds=kinds)
    assert folded(lines) == "sample 36..39"
    assert len({line.identity for line in lines}) == 1


def test_a_number_that_stops_growing_evenly_counts_no_more():
    kinds = Kinds()
    for value in (1, 2, 3, 4, 5, 9, 2):
        lines = lines_of(*[f"queue {value}"] * 2, kinds=kinds)
    assert lines[0].kind.counting == ()
    one, other = lines_of("queue 7", "queue 8", kinds=kinds)
    assert one.identity == other.identity


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(alike_module, "MAX_KINDS", 10)
    kinds = Kinds()
    often = kinds.of("often")
    for number in range(100):
        kinds.of(str(number))
        assert kinds.of("often") is often
    assert len(kinds._kinds) == 10
    for value in range(1000):
        lines_of(f"step {value}", kinds=kinds)
    (kind,) = [kind for kind in kinds._kinds.values() if kind.words.startswith("step")]
    assert len(kind._rank_of[0]) <= alike_module.MAX_VALUES


@given(st.lists(st.text(st.sampled_from("0123456789.,-+eExa: \x00\x01\x02\x1b[m")), min_size=1, max_size=4))
def test_any_lines_are_read(texts):
    lines = lines_of(*texts)
    for each in lines:
        assert folded([each]) == each.coloured
    same = [each for each in lines if each.identity == lines[0].identity]
    assert all(len(each.numbers) == len(lines[0].numbers) for each in same)
    assert folded(same) is not None
