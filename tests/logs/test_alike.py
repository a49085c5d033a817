"""Lines that say the same, and what becomes of their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs import alike
from launcher.logs.alike import Alike, Kinds, folded
from launcher.logs.lines import Line
from launcher.logs.times import Clock


def lines_of(*texts, kinds=None):
    """One line of each rank."""
    kinds = kinds or Kinds()
    return [_line(rank, text, kinds) for rank, text in enumerate(texts)]


def _line(rank, text, kinds):
    return Alike(Clock(0).stamped(Line(rank, 0, text.encode())), kinds)


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["loss is 9.87", "loss is 9.91", "loss is 9.9"], "loss is 9.87..9.91"),
        (["loss is 9.870", "loss is 9.91"], "loss is 9.870..9.91"),
        (["step 7, loss 10", "step 7, loss 9"], "step 7, loss 9..10"),
        (["loss 9", "loss 9.5"], "loss 9..9.5"),
        (["x -3", "x -1", "x 2"], "x -3..2"),
        (["x=-0.5", "x=0.25"], "x=-0.5..0.25"),
        (["lr 1e-4", "lr 3e-5"], "lr 3e-5..1e-4"),
        (["[rank0]: cuda:0", "[rank1]: cuda:1"], "[rank0..1]: cuda:0..1"),
        (["1,900 tokens", "2,100 tokens", "950 tokens"], "950..2,100 tokens"),
        (["at 0x7f1a", "at 0x7f0c"], "at 0x7f0c..0x7f1a"),
        (["took 3ms.", "took 12ms."], "took 3..12ms."),
        (["a-1 to a-2", "a-1 to a-3"], "a-1 to a-2..3"),
        (["1.0 x 2", "1.00 x 3"], "1.0 x 2..3"),
        (["same", "same"], "same"),
        (["", ""], ""),
    ],
)
def test_numbers_that_differ_become_ranges(texts, one):
    """As they are written; equal ones stay."""
    lines = lines_of(*texts)
    assert len({line.identity for line in lines}) == 1
    assert folded(lines) == one


@pytest.mark.parametrize(
    "texts",
    [
        ["loss is 9.87", "loss is nan"],
        ["a 1", "b 1"],
        ["1 2", "1 2 3"],
        ["10.0.0.1 is up", "10.0.0.2 is up"],
        ["torch 2.1.0", "torch 2.1.1"],
        ["id 12345678901234567890", "id 12345678901234567891"],
        ["x" * 3000 + "1", "x" * 3000 + "2"],
        ["I1121 12:00:00 x", "E1121 12:00:00 x"],
        ['  File "ddp.py", line 16, in <module>', '  File "ddp.py", line 18, in <module>'],
        ["[rank0]: in train.py:88: loss 1", "[rank1]: in train.py:90: loss 2"],
    ],
)
def test_what_is_not_alike(texts):
    """Other words, more numbers, addresses, versions, places in source files, and what is too long for either."""
    first, second = lines_of(*texts)
    assert first.identity != second.identity


def test_a_place_is_no_number_but_others_of_its_line_are():
    """Line and path stay as they are; what torch puts before them may differ."""
    lines = lines_of('[rank0]:   File "/tmp/7/ddp.py", line 16, in f', '[rank1]:   File "/tmp/7/ddp.py", line 16, in f')
    assert folded(lines) == '[rank0..1]:   File "/tmp/7/ddp.py", line 16, in f'
    assert folded(lines_of("train.py:88: loss 1.5", "train.py:88: loss 1.7")) == "train.py:88: loss 1.5..1.7"


def test_the_time_of_a_line_is_that_of_the_first():
    """Times differ always, and a range of them would say little."""
    lines = lines_of("2026-11-21 12:00:00,999 INFO loss 1.5", "2026-11-21 12:00:01,002 INFO loss 1.7")
    assert lines[0].identity == lines[1].identity
    assert folded(lines) == "2026-11-21 12:00:00,999 INFO loss 1.5..1.7"


def test_colours_stay_where_nothing_is_folded():
    """They do not make lines different."""
    red = lines_of("\x1b[31mloss 1\x1b[0m", "\x1b[31mloss 1\x1b[0m", "loss 1", "\x1b[31mloss 2\x1b[0m")
    assert len({line.identity for line in red}) == 1
    assert folded(red[:2]) == "\x1b[31mloss 1\x1b[0m"
    assert folded(red[:3]) == "loss 1"
    assert folded(red) == "loss 1..2"


def test_a_number_that_counts_must_be_equal():
    """Once it is seen to grow evenly, and to be common to ranks: step 7 of one is not step 8 of another."""
    kinds = Kinds()
    for step in range(1, 6):
        lines = [
            _line(rank, f"step {step}, loss {step * 0.37 + rank}, {rank * 7 + step} ms", kinds) for rank in range(4)
        ]
        assert len({line.identity for line in lines}) == 1
    early, late = _line(0, "step 6, loss 1.5, 5 ms", kinds), _line(1, "step 7, loss 1.5, 5 ms", kinds)
    assert early.identity != late.identity


def test_numbers_of_each_rank_alone_do_not_count():
    """Each rank reads every fourth sample: no two have the same, and they are alike all the same."""
    kinds = Kinds()
    for step in range(10):
        lines = [_line(rank, f"sample {4 * step + rank}", kinds) for rank in range(4)]
    assert folded(lines) == "sample 36..39"
    assert len({line.identity for line in lines}) == 1


def test_a_number_that_stops_growing_evenly_counts_no_more():
    """It was taken for a counter by accident."""
    kinds = Kinds()
    for value in (1, 2, 3, 4, 5, 9, 2):
        lines = [_line(rank, f"queue {value}", kinds) for rank in range(2)]
    assert lines[0].kind.counting == ()
    assert _line(0, "queue 7", kinds).identity == _line(1, "queue 8", kinds).identity


def test_what_is_known_is_bounded(monkeypatch):
    """The kinds of lines that came last are kept."""
    monkeypatch.setattr(alike, "MAX_KINDS", 10)
    kinds = Kinds()
    often = kinds.of("often")
    for number in range(100):
        kinds.of(str(number))
        assert kinds.of("often") is often
    assert len(kinds._kinds) == 10
    for value in range(1000):
        _line(value % 2, f"step {value}", kinds)
    (kind,) = [kind for kind in kinds._kinds.values() if kind.words.startswith("step")]
    assert len(kind._rank_of[0]) <= alike.MAX_VALUES


@given(st.lists(st.text(st.sampled_from("0123456789.,-+eExa: \x00\x01\x02\x1b[m")), min_size=1, max_size=4))
def test_any_lines_are_read(texts):
    """A line that is alone is shown as it is; of lines that are alike the words stay."""
    lines = lines_of(*texts)
    for line in lines:
        assert folded([line]) == line.coloured
    same = [line for line in lines if line.identity == lines[0].identity]
    assert all(len(line.numbers) == len(lines[0].numbers) for line in same)
    assert folded(same) is not None
