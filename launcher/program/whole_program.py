"""Find all of a program's own files that it may import, and detect MPI and MindSpore in them. Executes nothing."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.program import program_files
from launcher.program.program_command import PythonCommand
from launcher.program.source import MAX_FILES, READ_ERRORS, Import, Source, first_files

_MEETING = frozenset({"init", "init_process_group"})  # functions of MindSpore that connect the ranks
MAX_BYTES = 5_000_000


def uses_mpi(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool | None:
    """Return True if the program or one of its own modules imports mpi4py, or None if that is unknown.

    Unknown: a file cannot be read, or the program is an installed package (`python -m package`) that is not searched.
    Importing mpi4py calls MPI_Init, which requires a process that an MPI launcher started. The bundled trainer returns
    False: it uses mpi4py only under mpirun or srun.
    """
    if program_files.trainer_arguments(command, cwd, environment) is not None:
        return False
    if program_files.is_of_mpi4py(command):
        return True
    program = _WholeProgram(command, cwd, environment)
    if program.imports_mpi():
        return True
    is_of_library = command.kind == "module" and command.target.partition(".")[0] in sys.stdlib_module_names
    return False if program.is_complete or is_of_library else None


def uses_mindspore(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the program or one of its own modules imports MindSpore and connects ranks with its `init`.

    Only names of calls are checked: `init()`, `communication.init()`, `init_process_group()`, and any alias from
    `from mindspore.communication import init as ...`.
    """
    program = _WholeProgram(command, cwd, environment)
    return program.imports(program_files.MINDSPORE) and not program.called.isdisjoint(
        {*_MEETING, *program.aliases_of(program_files.MINDSPORE, _MEETING)}
    )


def own_files(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the program's file and the files of its own modules, sorted. Unreadable files are included."""
    return tuple(sorted(_WholeProgram(command, cwd, environment).files))


class _WholeProgram:
    def __init__(self, command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> None:
        self.files: set[Path] = set()  # files that were read, and files that could not be
        self.called: set[str] = set()  # names of functions and methods
        self._cwd = cwd
        self._roots = program_files.roots_of(command, cwd, environment)
        # Sorted: if there are too many files, all servers drop the same ones.
        self._imports: dict[Import, None] = {}
        self._waiting = deque(first_files(command, cwd, self._roots))
        self.is_complete = command.kind == "code" or bool(self._waiting)  # there is a program and it could be read
        if command.kind == "code":
            self._note(lambda: Source(command.target, "", is_program=True), None)
        size_bytes = 0
        while self._waiting and len(self.files) < MAX_FILES and size_bytes < MAX_BYTES:
            file = self._waiting.popleft()
            if file.path not in self.files:
                self.files.add(file.path)
                self._note(file.read, file.path)
                with suppress(OSError):
                    size_bytes += file.path.stat().st_size

    def imports_mpi(self) -> bool:
        """Return True if the program imports the library mpi4py. A local module of that name does not count.

        The library may be on PYTHONPATH, where environment modules of clusters put it.
        """
        own = [path for path, _ in program_files.files_of(program_files.MPI, self._roots)]
        is_own = any(path.name != "__init__.py" or not any(path.parent.glob("MPI.*")) for path in own)
        return not is_own and self.imports(program_files.MPI)

    def imports(self, package: str) -> bool:
        return any(found.root == package for found in self._imports)

    def aliases_of(self, package: str, names: Collection[str]) -> set[str]:
        return {found.alias for found in self._imports if found.root == package and found.name in names}

    def _note(self, read: Callable[[], Source], path: Path | None) -> None:
        """Record the imports of one module, and queue the files that they run."""
        try:
            source = read()
        except READ_ERRORS:
            self.is_complete = False
            return
        known, searched = len(self._imports), len(self._roots)
        for node in source.walk():
            self._imports |= dict.fromkeys(source.imports(node))
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    self.called.add(name)
            added = program_files.added_directory(node, path, self._cwd)
            if added is not None and added not in self._roots:
                self._roots.append(added)
        # A file not found before may be in a directory added just now.
        for found in list(self._imports)[known if len(self._roots) == searched else 0 :]:
            self._waiting += found.files(self._roots)
