"""Recognise commands that read their program from stdin, such as `bash -s`. In a rank they would read /dev/null."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.program.program_command import SHELLS, is_python, program_file

STDIN_FILES = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
# These read stdin only if no arguments are given: the value of an option may be the program.
_OTHERS = frozenset({"julia", "lua", "node", "perl", "php", "Rscript", "ruby", "tclsh"})
_SHELL_VALUES = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})  # the next word is their value
_ABOUT_ITSELF = frozenset({"--help", "--help-all", "--help-env", "--help-xoptions", "--version"})


def reader_of_stdin(argv: Sequence[str], search_path: str | None, cwd: Path) -> str | None:
    """Return the name of the interpreter that would read its program from stdin, or None for any other command."""
    words = list(argv)
    if words and _name(words[0]) == "env":
        del words[0]
        while words and "=" in words[0]:
            del words[0]
    if not words or program_file(words, search_path, cwd) is None:
        return None
    name, rest = _name(words[0]), iter(words[1:])
    if is_python(name):
        return "Python" if _python_reads(rest) else None
    if name in SHELLS:
        return name if _shell_reads(rest) else None
    return name if name in _OTHERS and next(rest, "-") in {"-", *STDIN_FILES} else None


def _name(word: str) -> str:
    return os.path.basename(word)  # noqa: PTH119 - a Path would normalise it


def _python_reads(words: Iterator[str]) -> bool:
    for word in words:
        if word == "--":
            return next(words, "-") in {"-", *STDIN_FILES}
        if word in {"-", *STDIN_FILES}:
            return True
        if not word.startswith("-") or word in _ABOUT_ITSELF:
            return False
        if word.startswith("--"):  # --check-hash-based-pycs
            next(words, None)
            continue
        flags = word[1:]
        ends = [at for at, letter in enumerate(flags) if letter in "cmhV?WX"]
        if ends and flags[ends[0]] not in "WX":
            return False
        if ends and ends[0] == len(flags) - 1:
            next(words, None)
    return True


def _shell_reads(words: Iterator[str]) -> bool:
    for word in words:
        if word in {"-", "--"}:
            return next(words, None) in {None, *STDIN_FILES}
        if word in STDIN_FILES:
            return True
        if word[:1] not in {"-", "+"} or word in _ABOUT_ITSELF:
            return False
        if word in _SHELL_VALUES:
            next(words, None)
        elif not word.startswith("--") and word.startswith("-"):
            if "c" in word:
                return False
            if "s" in word:
                return True
    return True
