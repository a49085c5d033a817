"""Find the files of a Python program without running Python."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.core.env import PYTHONSAFEPATH
from launcher.core.regular_files import read_regular
from launcher.core.resources import PACKAGE, START, START_BY_NAME
from launcher.program.program_command import PythonCommand

MPI = "mpi4py"
OWN = "launcher"  # the package of tlaunch
MAX_BYTES = 16 << 20  # limit for one file of a program
MINDSPORE = "mindspore"
TRAINER = "launcher.trainer"
DEFAULT_RECIPE = "transformer"  # catalogue name of the bundled program that TRAINER runs by default


def own_module(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> PythonCommand | None:
    """Return the command in the form `python -m launcher.MODULE`, or None if it does not run tlaunch."""
    is_start = (command.kind, Path(command.target).name) == ("script", Path(START).name)
    if is_start or (command.kind, command.target) == ("code", START_BY_NAME[1]):
        option, module, arguments = command.arguments[:1], "".join(command.arguments[1:2]), command.arguments[2:]
        is_module = option == ("-m",) and module.startswith(f"{OWN}.")
        return replace(command, kind="module", target=module, arguments=arguments) if is_module else None
    if command.kind != "module" or command.target.partition(".")[0] != OWN:
        return None
    found = files_of(OWN, roots_of(command, cwd, environment))
    return command if not found or found[0][0].resolve().parent == PACKAGE else None


def trainer_arguments(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    own = own_module(command, cwd, environment)
    return own.arguments if own is not None and own.target == TRAINER else None


def mentions_mpi(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool:
    if command.kind == "code":
        return MPI in command.target
    main = main_file(command, cwd, roots_of(command, cwd, environment))
    with suppress(OSError):
        return is_of_mpi4py(command) or (main is not None and MPI.encode() in read_regular(main, MAX_BYTES))
    return False


def has_installed(package: str, command: PythonCommand, environment: Mapping[str, str]) -> bool:
    """Return True if the package is on PYTHONPATH or in the usual directories of the program's interpreter."""
    prefixes = (Path(command.interpreter).parent.parent, Path(environment.get("HOME", "/")) / ".local")
    inherited = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any((Path(entry) / package).is_dir() for entry in inherited if entry) or any(
        any(prefix.glob(f"{library}/python3*/{packages}/{package}/__init__.py"))
        for prefix in prefixes
        for library in ("lib", "lib64", "local/lib")
        for packages in ("site-packages", "dist-packages")
    )


def first_on_path(command: PythonCommand, cwd: Path) -> str:
    """Return the entry that Python puts first in sys.path for this program, unless its options prevent that."""
    if command.kind != "script":
        return ""
    script = cwd / command.target
    return str(script if script.is_dir() else script.resolve().parent)


def is_of_mpi4py(command: PythonCommand) -> bool:
    return command.kind == "module" and command.target.partition(".")[0] == MPI


def heeds(command: PythonCommand, environment: Mapping[str, str]) -> tuple[bool, bool]:
    """Return two booleans: True if Python searches the program's directory, and True if it uses PYTHONPATH."""
    letters = {letter for option in command.options if option[:1] == "-" and option[1:].isalpha() for letter in option}
    inherits = not letters & set("IE")
    return not (letters & set("IP") or (inherits and environment.get(PYTHONSAFEPATH))), inherits


def roots_of(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the directories that Python searches before its library: the program's directory, then PYTHONPATH."""
    beside, inherits = heeds(command, environment)
    first = [cwd] if beside else []
    if command.kind == "script":
        script = cwd / command.target
        first = [script] if script.is_dir() else [script.resolve().parent] if first else []
    inherited = environment.get("PYTHONPATH", "") if inherits else ""
    return first + [cwd / entry for entry in inherited.split(os.pathsep) if entry]


def main_file(command: PythonCommand, cwd: Path, roots: list[Path]) -> Path | None:
    """Return the file that runs as `__main__`, or None if its module is not found. The file may be missing."""
    if command.kind == "script":
        script = cwd / command.target
        return script / "__main__.py" if script.is_dir() else script
    files = [path for path, _ in files_of(command.target, roots)]
    if files and files[-1].name == "__init__.py":
        return files[-1].with_name("__main__.py")
    return files[-1] if files and files[-1].stem == command.target.rpartition(".")[2] else None


def files_of(name: str, roots: Iterable[Path]) -> list[tuple[Path, str]]:
    """Return (file, package name) for each module that `import name` runs, or [] if `name` is not in `roots`.

    If the last part is not a module (`from package import name`), the result is that for its package.
    """
    parts = name.split(".")
    for root in roots:
        files: list[tuple[Path, str]] = []
        for count in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:count])
            if (place / "__init__.py").is_file():
                files.append((place / "__init__.py", ".".join(parts[:count])))
            elif place.with_name(place.name + ".py").is_file():
                files.append((place.with_name(place.name + ".py"), ".".join(parts[: count - 1])))
        if files:
            return files
    return []


def added_directory(node: ast.AST, file: Path | None, cwd: Path) -> Path | None:
    """Return the directory that a call of `sys.path.insert` or `append` probably adds, or None for other AST nodes.

    String arguments become parts of the path. They are joined to a parent of `__file__`, or of a variable, as many
    levels up as the expression suggests.
    """
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="path"), attr="insert" | "append"), args=[*_, added]):
            nodes = list(ast.walk(added))
        case _:
            return None
    texts = [part.value for part in nodes if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    ups = sum(part.attr in {"dirname", "parent"} for part in nodes if isinstance(part, ast.Attribute))
    for part in nodes:
        match part:
            case ast.Subscript(value=ast.Attribute(attr="parents"), slice=ast.Constant(value=int(level))):
                ups += level + 1
    names = {part.id for part in nodes if isinstance(part, ast.Name)} - {"os", "Path", "pathlib", "str", "sys"}
    if not names or file is None:
        return Path(os.path.normpath(cwd.joinpath(*texts)))
    base = file if "__file__" in names else file.parent
    for _ in range(ups):
        base = base.parent
    return Path(os.path.normpath(base.joinpath(*(text.lstrip("/") for text in texts))))
