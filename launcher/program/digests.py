"""Compute digests of a program's own files. By comparing them, servers check that they run the same program.

For a Python program: its own file and the program's own modules that it imports, as far as the source shows. For a
shell: the script. For anything else: the executable. Excluded are files installed by the system or pip, data, and
everything that the program reads, loads or starts itself. A file name is relative to the directory where Python or the
user looks for the file, so servers may keep the program in different places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from launcher.program.program_command import SHELLS, parse_python, program_file
from launcher.program.program_files import MPI, is_of_mpi4py, own_module, roots_of
from launcher.program.whole_program import own_files

MAX_BYTES = 32 << 20  # per file; of a larger file, the size and the beginning count
DIGEST_CHARS = 12
UNREADABLE = "unreadable"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/")


def digests_of(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return the digest of each of the program's own files, keyed by file name. Never raises."""
    try:
        return {name: _digest(path) for name, path in _files(argv, environment, cwd)}
    except (OSError, ValueError):  # a path with a null byte, or a directory without permission
        return {}


def essential_words(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> tuple[str, ...]:
    """Remove a command's arguments, which may be secret. Unless it runs Python, keep only the first two words."""
    python = parse_python(argv, environment.get("PATH"), cwd)
    if python is None or is_of_mpi4py(python):
        return tuple(argv[:2])
    return tuple(argv[: len(argv) - len(python.arguments)])


def _files(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Iterator[tuple[str, Path]]:
    python = parse_python(argv, environment.get("PATH"), cwd)
    if python is None:
        yield from _of_no_python(argv, environment, cwd)
        return
    if is_of_mpi4py(python) and python.target in {MPI, f"{MPI}.run"} and python.arguments:
        target, *arguments = python.arguments  # `python -m mpi4py train.py` runs train.py
        if not target.startswith("-"):
            python = replace(python, kind="script", target=target, arguments=tuple(arguments))
    if own_module(python, cwd, environment) is not None:  # servers compare tlaunch's code when they join
        return
    roots = roots_of(python, cwd, environment)
    beside_python = Path(python.interpreter).parent
    for path in own_files(python, cwd, environment):
        if not _INSTALLED & set(path.parts) and path.parent != beside_python:
            yield _name(path, (*roots, cwd)), path


def _of_no_python(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Iterator[tuple[str, Path]]:
    program = program_file(argv, environment.get("PATH"), cwd)
    if program is None:
        return
    if program.name in SHELLS:
        words = [word for word in argv[1:] if not word.startswith(("-", "+"))]
        script = None if "-c" in argv or not words else cwd / words[0]
        if script is not None and script.is_file():
            yield words[0], script
    elif not str(program).startswith(_SYSTEM):
        yield _name(program, (cwd, program.parent)), program


def _name(path: Path, roots: Iterable[Path]) -> str:
    """Return `path` relative to the innermost directory in `roots` that contains it."""
    below = (path.relative_to(root) for root in roots if path.is_relative_to(root))
    return str(min(below, key=lambda name: len(name.parts), default=path))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = sha256(file.read(MAX_BYTES))
    except OSError:
        return UNREADABLE
    digest.update(str(size).encode())
    return digest.hexdigest()[:DIGEST_CHARS]
