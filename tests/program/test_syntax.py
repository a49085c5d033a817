"""Find syntax errors of a program before it is started."""

import sys
from functools import partial

import pytest

from launcher.program.program_command import parse_python
from launcher.program.syntax import error_in, excerpt


@pytest.fixture
def found(tmp_path):
    """Return a function that writes `program.py` and finds the syntax error in a command."""

    def error(text: bytes, *words: str, name: str = "program.py"):
        (tmp_path / name).write_bytes(text)
        command = parse_python([sys.executable, *(words or (name,))], None, tmp_path)
        assert command is not None
        return error_in(command, tmp_path, sys.executable)

    return error


@pytest.mark.parametrize(("text", "line"), [
    (b"import os\nx = (1,\ny = 2\n", 2), (b"def f(:\n    pass\n", 1), (b"if True:\nprint()\n", 2),
    (b"if True:\n        x = 1\n\ty = 2\n", 3),
])  # fmt: skip
def test_what_python_refuses_is_found_with_its_line(found, text, line):
    assert found(text).lineno == line


@pytest.mark.parametrize(("text", "words", "name"), [
    (b"print('well')\n", (), "program.py"),
    (b"# -*- coding: latin-1 -*-\n# \xe4\n", (), "program.py"),
    (b"assert (1, 'always true')\n'\\d'\n", (), "program.py"),  # warnings are the ranks' to give
    (b"x = = 1\n", (), "program.zip"),
    (b"x = = 1\n", ("-c", "print()"), "program.py"),
    (b"x = = 1\n", ("-m", "program"), "program.py"),
    (b"x = = 1\n", ("missing.py",), "program.py"),
    (b"# \xe4\n", (), "program.py"),  # neither UTF-8 nor said to be anything else: Python will tell
])  # fmt: skip
def test_what_is_sound_or_not_ours_to_judge_is_not_refused(found, text, words, name, recwarn):
    assert found(text, *words, name=name) is None
    assert not recwarn.list


def test_the_code_of_c_is_read(found):
    assert found(b"", "-c", "x = = 1").lineno == 1


def test_another_interpreter_reads_its_own_language(tmp_path):
    (tmp_path / "program.py").write_text("x = = 1\n")
    command = parse_python([sys.executable, "program.py"], None, tmp_path)
    judge = partial(error_in, command, tmp_path)
    assert judge(sys.executable) is not None
    assert judge(__file__) is None


def test_an_excerpt_marks_the_place(found):
    source, mark = excerpt(found(b"if 1:\n    x = = 1\n"))
    assert source == "    x = = 1"
    assert mark[:8].isspace()
    assert mark.strip("^ ") == ""
    assert mark.index("^") == source.rindex("=")
    assert excerpt(SyntaxError("unknown")) == ()
