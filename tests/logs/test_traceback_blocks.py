"""Single tracebacks in a text: where each begins and ends, and what of it is told."""

import traceback

import pytest

from launcher.logs.traceback_blocks import (
    HEADER,
    blocks_from_first,
    blocks_from_last,
    lines_of,
    prefix_of,
    without_prefix,
)


def fail(message):
    raise ValueError(message)


def raised(message):
    """As Python prints it."""
    try:
        fail(message)
    except ValueError:
        return traceback.format_exc()


def marked(text, prefix):
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


MANY = f"step 1\n{raised('a')}step 2\n{marked(raised('b'), '[rank3]: ')}{raised('c')}  {raised('cut')[:60]}"


def test_the_same_are_found_from_either_end():
    """Each is where it says, with its header and exception, and none that was cut off is among them."""
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


def test_what_a_block_is_called():
    """Its exception, and where it was raised, as far as it tells."""
    (block,) = blocks_from_first(raised("bad"))
    assert block.summary == f"ValueError: bad at {block.where}"
    assert block.where.endswith(" in fail")
    (bare,) = blocks_from_first(f'{HEADER}\n  File "/a/b.py", line 3\nKeyboardInterrupt\n')
    assert (bare.summary, bare.message) == ("KeyboardInterrupt at b.py:3", "")


@pytest.mark.parametrize(
    ("before", "following", "prefix"),
    [
        ("", "  File", ""),
        ("[rank3]: ", "[rank3]:   File", "[rank3]: "),
        ("[rank3]: ", "  File", ""),
        (" 50%|##\r[rank3]: ", "[rank3]:   File", "[rank3]: "),
        ("Original ", "  File", ""),
        ("  + Exception Group ", "  |   File", "  | "),
    ],
)
def test_what_every_line_begins_with(before, following, prefix):
    """The header's line and the one below it must agree."""
    assert prefix_of(f"{before}{HEADER}", following) == prefix


@pytest.mark.parametrize(
    ("line", "rest"), [("[rank3]: x", "x"), ("[rank3]:", ""), ("[rank3]: x\r", "x"), ("x", None), ("", None)]
)
def test_a_line_without_what_it_begins_with(line, rest):
    """An empty line may have lost the blank at its end; one that begins otherwise is another program's."""
    assert without_prefix("[rank3]: ", line) == rest


@pytest.mark.parametrize("text", ["", "one", "one\n", "\n\none\n\ntwo"])
def test_lines_and_where_the_next_one_begins(text):
    """Together they are the text."""
    lines = list(lines_of(text, 0, len(text)))
    assert [line for line, _ in lines] == text.splitlines()
    starts = [0, *(after for _, after in lines)]
    assert starts[-1] == len(text)
    assert all(text[start:].startswith(line) for start, (line, _) in zip(starts, lines, strict=False))
