"""The files of its own that a program may import at whatever depth, and whether it uses MPI or MindSpore; nothing is executed."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.program.command import PythonCommand
from launcher.program.files import MINDSPORE, MPI, added_directory, files_of, is_of_mpi4py, roots_of, trainer_arguments
from launcher.program.source import MAX_FILES, READ_ERRORS, Import, Source, first_files

_MEETING = frozenset({"init", "init_process_group"})  # functions of MindSpore after which ranks know each other
MAX_BYTES = 5_000_000


def uses_mpi(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool | None:
    """Return whether the program, or a module of its own that it imports, imports mpi4py; None where it cannot be read.

    None is the answer for `python -m package` too where that is installed: only Python could find it.

    mpi4py calls MPI_Init when it is imported, and then wants to be a process that an engine knows. The bundled trainer
    uses it only where an engine has started it.
    """
    if trainer_arguments(command, cwd, environment) is not None:
        return False
    if is_of_mpi4py(command):
        return True
    program = _WholeProgram(command, cwd, environment)
    if program.imports_mpi():
        return True
    is_of_library = command.kind == "module" and command.target.partition(".")[0] in sys.stdlib_module_names
    return False if program.is_complete or is_of_library else None


def uses_mindspore(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the program, or a module of its own that it imports, imports MindSpore and calls its `init`.

    The call is seen by its name alone: `init()`, `communication.init()`, `init_process_group()`, and what
    `from mindspore.communication import init as` calls it.
    """
    program = _WholeProgram(command, cwd, environment)
    return program.imports(MINDSPORE) and not program.called.isdisjoint(
        {*_MEETING, *program.aliases_of(MINDSPORE, _MEETING)}
    )


def own_files(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the program's own file and those of its own modules that it imports, readable or not."""
    return tuple(sorted(_WholeProgram(command, cwd, environment).files))


class _WholeProgram:
    """Everything that the program may import from files of its own."""

    def __init__(self, command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> None:
        self.files: set[Path] = set()  # what was read, and what could not be
        self.called: set[str] = set()  # names of functions and methods
        self._cwd = cwd
        self._roots = roots_of(command, cwd, environment)
        # In order: where too many files are left out, all servers leave out the same.
        self._imports: dict[Import, None] = {}
        self._waiting = deque(first_files(command, cwd, self._roots))
        self.is_complete = command.kind == "code" or bool(self._waiting)  # there is a program, and it could be read
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
        """Return whether the program imports mpi4py, and that is no module of its own.

        mpi4py itself may be on PYTHONPATH: modules of clusters put it there.
        """
        own = [path for path, _ in files_of(MPI, self._roots)]
        is_own = any(path.name != "__init__.py" or not any(path.parent.glob("MPI.*")) for path in own)
        return not is_own and self.imports(MPI)

    def imports(self, package: str) -> bool:
        """Return whether the program imports something of a package of that name."""
        return any(found.root == package for found in self._imports)

    def aliases_of(self, package: str, names: Collection[str]) -> set[str]:
        """Return what the program calls some functions of a package where it imports them under other names."""
        return {found.alias for found in self._imports if found.root == package and found.name in names}

    def _note(self, read: Callable[[], Source], path: Path | None) -> None:
        """Take down what one module imports, and which files those are."""
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
                case _:
                    pass
            added = added_directory(node, path, self._cwd)
            if added is not None and added not in self._roots:
                self._roots.append(added)
        # What was not found before may be in a directory that was added now.
        for found in list(self._imports)[known if len(self._roots) == searched else 0 :]:
            self._waiting += found.files(self._roots)
