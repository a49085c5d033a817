"""Parse Python command lines as Python does, without running Python."""

import os
import sys
from pathlib import Path

import pytest

from launcher.program.program_command import PythonCommand, has_no_shebang, missing_interpreter, parse_python
from tests.conftest import executable


@pytest.fixture
def bin_dir(tmp_path):
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("python", "python3", "python3.11", "ls", "pythonista"):
        executable(directory / name)
    return directory


@pytest.fixture
def parse(bin_dir, tmp_path):
    return lambda *argv: parse_python(argv, str(bin_dir), tmp_path)


ACCEPTED = [
    (["t.py"], ((), "script", "t.py", ())),
    (["./t.py", "-u", "--", "x"], ((), "script", "./t.py", ("-u", "--", "x"))),
    (["-u", "-Bs", "t.py"], (("-u", "-Bs"), "script", "t.py", ())),
    (["-W", "error", "-Xdev", "-X", "utf8=1", "t.py"], (("-W", "error", "-X", "dev", "-X", "utf8=1"), "script", "t.py", ())),
    (["-uWerror", "t.py"], (("-u", "-W", "error"), "script", "t.py", ())),
    (["-m", "pkg.run", "-m", "x"], ((), "module", "pkg.run", ("-m", "x"))),
    (["-Oum", "pkg"], (("-Ou",), "module", "pkg", ())),
    (["-mpkg", "x"], ((), "module", "pkg", ("x",))),
    (["-c", "print(1)", "-c"], ((), "code", "print(1)", ("-c",))),
    (["-c", ""], ((), "code", "", ())),
    (["-I", "-P", "--", "-odd.py", "x"], (("-I", "-P"), "script", "-odd.py", ("x",))),
    (["--check-hash-based-pycs", "always", "t.py"], (("--check-hash-based-pycs", "always"), "script", "t.py", ())),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), ACCEPTED, ids=[" ".join(words) for words, _ in ACCEPTED])
def test_a_program_is_taken_apart(parse, bin_dir, words, expected):
    for env in ((), ("env",), ("/usr/bin/env",)):
        assert parse(*env, "python", *words) == PythonCommand(f"{bin_dir}/python", *expected, name="python")


@pytest.mark.parametrize("words", [
    [], ["-"], ["-i", "t.py"], ["-h"], ["-V"], ["--version"], ["-ui"], ["-z", "t.py"], ["-m"], ["-c"], ["-W"], ["--"],
    ["-u"], ["-x", "t.py"], ["-v", "t.py"], ["--help", "t.py"], ["", "x"], ["-X", "importtime", "t.py"], ["-Ximporttime=2", "t.py"], ["-u-", "t.py"],
])  # fmt: skip
def test_what_cannot_be_imitated_is_none_of_ours(parse, words):
    assert parse("python", *words) is None


@pytest.mark.parametrize(
    "words", [["ls"], ["pythonista", "t.py"], ["missing"], [], ["env"], ["env", "-i", "python", "t.py"]]
)
def test_other_programs_are_none_of_ours(parse, words):
    assert parse(*words) is None


def test_the_python_of_a_virtual_environment_stays_a_link(parse, bin_dir, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(bin_dir / "python3.11")
    found = parse("venv/python", "t.py")
    assert (found.interpreter, found.name) == (f"{tmp_path}/venv/python", "venv/python")


def test_programs_are_found_as_by_exec(parse, bin_dir, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "python3").write_text("not executable")
    (tmp_path / "second" / "python3").mkdir(parents=True)
    found = parse_python(["python3", "t.py"], f"first:second:{bin_dir.name}", tmp_path)
    assert found.interpreter == f"{tmp_path}/bin/python3"
    assert parse_python(["python3", "t.py"], "first", tmp_path) is None


@pytest.mark.parametrize(("line", "options"), [
    ("#!{bin}/python3", ()), ("#! {bin}/python3 -u", ("-u",)), ("#!/usr/bin/env python3", ()),
    ("#!/usr/bin/env -S python3 -u -O", ("-u", "-O")),
])  # fmt: skip
def test_a_script_that_names_python_counts(parse, bin_dir, tmp_path, line, options):
    executable(tmp_path / "train.py", line.format(bin=bin_dir) + "\nprint()\n")
    found = parse("./train.py", "x")
    assert (found.interpreter, found.options) == (f"{bin_dir}/python3", options)
    assert (found.kind, found.target, found.arguments) == ("script", "./train.py", ("x",))
    # On the path it is known by its place: that is what the kernel gives to the interpreter.
    executable(bin_dir / "tool", line.format(bin=bin_dir) + "\n")
    assert parse("tool").target == f"{bin_dir}/tool"


@pytest.mark.parametrize("line", [
    "", "#!", "#!/bin/sh", "#!{bin}/python3 -u -O", "#!/usr/bin/env -S python3 '-u'", "#!/usr/bin/env -u X python3",
    "#!{bin}/" + "x" * 300 + "/python3", "\x7fELF", "#!/usr/bin/env python3 -u",
])  # fmt: skip
def test_other_first_lines_are_none_of_ours(parse, bin_dir, tmp_path, line):
    executable(tmp_path / "train.py", line.format(bin=bin_dir) + "\n")
    assert parse("./train.py") is None
    (tmp_path / "plain.py").write_text("#!/usr/bin/env python3\n")  # not executable
    assert parse("./plain.py") is None


def test_it_agrees_with_this_python():
    found = parse_python([sys.executable, "-c", "pass"], os.environ["PATH"], Path.cwd())
    assert found == PythonCommand(sys.executable, (), "code", "pass", (), sys.executable)


@pytest.mark.parametrize(("text", "lacks"), [
    (b"print()\n", True), (b"", True), (b"\n#!/bin/sh\n", True), (b"#!/bin/sh\n", False), (b"#!", False), (b"\x7fELF\2\1\1\0", False), (None, False),
])  # fmt: skip
def test_a_script_may_lack_its_first_line(tmp_path, text, lacks):
    if text is not None:
        (tmp_path / "script").write_bytes(text)
    assert has_no_shebang(tmp_path / "script") == lacks


@pytest.mark.parametrize(("line", "name"), [
    ("#!/nowhere/sh", "/nowhere/sh"), ("#! /nowhere/sh -e", "/nowhere/sh"), ("#!/bin/sh\r", "/bin/sh\r"),
    ("#!/usr/bin/env nosuch", "nosuch"), ("#!/usr/bin/env python3 -u", "python3 -u"), ("#!/usr/bin/env python3\r", "python3\r"),
    ("#!/usr/bin/env -S nosuch -u", "nosuch"), ("#!bin/nosuch", "bin/nosuch"),
    ("#!/bin/sh", None), ("#!/bin/sh -e", None), ("#!/usr/bin/env python3", None), ("#!/usr/bin/env -S python3 -u", None),
    ("#!/usr/bin/env -i nosuch", None), ("#!/usr/bin/env A=1", None), ("#!bin/python3", None), ("#!", None), ("", None),
    ("#!/" + "x" * 300, None), ("\x7fELF", None),
])  # fmt: skip
def test_an_interpreter_that_does_not_exist_is_named(bin_dir, tmp_path, line, name):
    script = executable(tmp_path / "script", line + "\nprint()\n")
    assert missing_interpreter(script, str(bin_dir), tmp_path) == name
