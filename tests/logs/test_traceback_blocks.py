"""Find single tracebacks in a text: where each begins and ends, and which parts are kept."""

import pytest

from launcher.logs.traceback_blocks import (
    HEADER,
    MESSAGE_LINES,
    TracebackLines,
    blocks_from_first,
    blocks_from_last,
    prefix_of,
    without_prefix,
)

from .conftest import BROKEN_GROUP, GROUP, LINK, TRACEBACK, marked


def raised(message):
    return TRACEBACK.replace("no\n", f"{message}\n")


MANY = f"step 1\n{raised('a')}step 2\n{marked(raised('b'), '[rank3]: ')}{raised('c')}  {raised('cut')[:60]}"


def test_the_same_are_found_from_either_end():
    found = list(blocks_from_first(MANY))
    assert list(blocks_from_last(MANY, len(MANY))) == found[::-1]
    assert [block.message for block in found] == ["a", "b", "c"]
    for block in found:
        lines = MANY[block.start : block.end].splitlines()
        assert lines[0] == f"{block.prefix}{HEADER}"
        assert lines[-1] == f"{block.prefix}ValueError: {block.message}"
        assert tuple(line.removeprefix(block.prefix) for line in lines) == block.body


def test_those_before_a_place_are_found():
    """None that begins behind it, though one may end there."""
    (first, second, _) = blocks_from_first(MANY)
    assert list(blocks_from_last(MANY, second.start)) == [first]
    assert list(blocks_from_last(MANY, 0)) == []


@pytest.mark.parametrize(("before", "following", "prefix"), [
    ("", "  File", ""), ("[rank3]: ", "[rank3]:   File", "[rank3]: "), ("[rank3]: ", "  File", ""),
    (" 50%|##\r[rank3]: ", "[rank3]:   File", "[rank3]: "), ("Original ", "  File", ""),
    ("  + Exception Group ", "  |   File", "  | "), ("[rank3]:   + Exception Group ", "[rank3]:   |   File", "[rank3]:   | "),
])  # fmt: skip
def test_what_every_line_begins_with(before, following, prefix):
    """The header's line and the one below it must agree."""
    assert prefix_of(f"{before}{HEADER}", following) == prefix


@pytest.mark.parametrize(
    ("line", "rest"), [("[rank3]: x", "x"), ("[rank3]:", ""), ("[rank3]: x\r", "x"), ("x", None), ("", None)]
)
def test_a_line_without_what_it_begins_with(line, rest):
    """An empty line may have lost the blank at its end; one that begins otherwise is another program's."""
    assert without_prefix("[rank3]: ", line) == rest


@pytest.mark.parametrize("kind", ["f.<locals>.E", "<lambda>.<locals>.E", "__mp_main__.Full", "Élan", "a.b.Überlauf"])
def test_exceptions_of_any_name(kind):
    for line, message in ((kind, ""), (f"{kind}: text", "text"), (f"{kind}: ", "")):
        (block,) = blocks_from_first(marked(raised("x").replace("ValueError: x", line), "[rank7]: "))
        assert (block.type, block.message) == (kind, message)


@pytest.mark.parametrize("line", ["INFO:root:step", "3.5: x", "a b: c", "<x: y", "a..b", "-"])
def test_what_is_no_exception(line):
    assert not list(blocks_from_first(raised("x").replace("ValueError: x", line)))


def test_a_traceback_behind_a_level_is_none_of_a_message():
    text = f"step 1\nERROR: {raised('a')}"
    (block,) = blocks_from_last(text, len(text))
    assert (block.message, list(blocks_from_first(text))) == ("a", [block])
    quoting = raised("a").replace("load()", f'load("{HEADER}")')
    assert quoting.count(HEADER) == 2
    (block,) = blocks_from_last(quoting, len(quoting))
    assert list(blocks_from_first(quoting)) == [block]
    assert (block.type, block.message) == ("ValueError", "a")


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_group_is_whole_though_messages_break_its_frame(prefix):
    """What comes below it is none of it, though that may look like a frame."""
    text = marked(BROKEN_GROUP, prefix)
    after = f"{prefix}step 2\n    | a | b |\n"
    (block,) = blocks_from_first(text + after)
    assert (block.type, block.end) == ("ExceptionGroup", len(text))
    assert "\n".join(block.body).endswith(f"multi\n  +{'-' * 16} 2 {'-' * 16}\n  | KeyError: 'c'\n  +{'-' * 36}")
    assert list(blocks_from_last(text + after, len(text + after))) == [block]


def test_how_far_the_frame_of_a_group_is_looked_for():
    broken = BROKEN_GROUP.partition("    +---------------- 2")[0]
    for between in ("x\n" * MESSAGE_LINES, BROKEN_GROUP.splitlines(keepends=True)[0]):
        (block, *_) = blocks_from_first(f"{broken}{between}    | KeyError: 'c'\n")
        assert block.end == broken.index("\n\nmulti") + 1


# --- line by line ---

PLAIN = TRACEBACK.splitlines()
IN_TORCH = marked(TRACEBACK, "[rank3]: ").splitlines()


@pytest.mark.parametrize(("lines", "begins"), [
    # From the header to the exception; what torch puts before each line is none of the traceback's own text.
    (["step 1", *PLAIN, "step 2"], [None, 0, 0, 0, 0, None]),
    (["step 1", *IN_TORCH, "step 2"], [None, 9, 9, 9, 9, None]),
    # The sentence between two tracebacks is of neither.
    ([*PLAIN, *LINK.splitlines(), *PLAIN], [0, 0, 0, 0, None, None, None, 0, 0, 0, 0]),
    # The tracebacks in a group are each behind its own frame.
    (GROUP.splitlines(), [20, 4, 4, 4, None, 6, 6, 6, 6, None, None, None]),
    # One that is cut off does not go on: a blank line, or one without torch's mark, belongs to something else.
    ([*PLAIN[:2], "", "    f(7)"], [0, 0, None, None]),
    ([*IN_TORCH[:2], "NCCL WARN 1", "  2"], [9, 9, None, None]),
    # A header that a program quotes is none: only as the end of its line.
    ([f"{HEADER} it said", "  5"], [None, None]),
], ids=["python", "torch", "chain", "group", "cut off", "torch's, cut off", "quoted"])  # fmt: skip
def test_where_the_text_of_a_traceback_begins_in_each_line(lines, begins):
    assert list(map(TracebackLines().put, lines)) == begins
