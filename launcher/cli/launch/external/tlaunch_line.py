"""Translation of another launcher's command line to a tlaunch command."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.cli.launch.external.command_lines import Line, Typed, names_program
from launcher.cli.launch.external.options import TABLE, Subject
from launcher.cli.launch.external.places import ServerAddresses, places_of, says_places
from launcher.core.frozen import frozen
from launcher.core.text import shell_words
from launcher.preload.masking import MASK
from launcher.program.program_command import is_python

_MODULE, _NO_PYTHON = frozenset(("-m", "--module")), "--no-python"
_OF_TABLE: tuple[Subject, ...] = ("meeting", "first server")  # the rank table replaces these


@frozen
class TlaunchLine:
    """The tlaunch commands for the user, quoted for a shell."""

    table: str | None  # the command that creates the rank table
    run: str
    notes: tuple[str, ...] = ()  # on placeholders, on where to run it, and on omitted options
    unknown: tuple[str, ...] = ()  # omitted options with unknown meaning
    missing: tuple[str, ...] = ()  # omitted options without an equivalent


def tlaunch_line(
    line: Line, *, command: str = "tlaunch run", by_python: bool = False, again: bool = False
) -> TlaunchLine | None:
    """Return the equivalent tlaunch command; None if the line cannot be translated.

    Args:
        line: The line of another launcher.
        command: The beginning of the tlaunch command.
        by_python: Whether the launcher always starts the program with Python.
        again: Whether the command is `tlaunch rerun`, which takes missing options from the recorded run.
    """
    if (program := _program(line, by_python=by_python)) is None:
        return None
    are_arguments = bool(program) and program[0].startswith("-")
    # mpirun separates several programs with `:`.
    is_cut = not line.is_clear or (are_arguments and not again) or ":" in line.program
    if is_cut or line.of("unclear"):
        return None
    of_mpi = line.launcher == "mpirun" and bool(program) and not are_arguments  # the ranks form one MPI job
    places = ServerAddresses() if again and not says_places(line) else places_of(line, of_mpi=of_mpi)
    if places is None:
        return None
    is_mpi = "mpi" in (*places.options, *line.own)
    options, left_out, missing = _options(line, of_mpi=is_mpi, several=places.several)
    of_bare_mpi = of_mpi and not names_program(program[0]) and not line.has_own("--mpi-ranks", "--no-mpi-ranks")
    as_ranks = ("--mpi-ranks",) * of_bare_mpi  # `tlaunch run` detects MPI in Python programs
    words = [shell_words((*places.options, *as_ranks, *line.own)), *options]
    run = " ".join(filter(None, (command, *words, *(["--", shell_words(program)] if program else []))))
    notes = [*places.notes, *left_out]
    if places.table and not places.from_one:
        notes.insert(0, f"run the second command on every server, with the same {TABLE}")
    if line.unknown:
        notes.append(f"{', '.join(line.unknown)}: unknown option, left out")
    if MASK in run:
        notes.append("fill in the masked values")
    return TlaunchLine(shell_words(places.table) if places.table else None, run, tuple(notes), line.unknown, missing)


def _program(line: Line, *, by_python: bool) -> tuple[str, ...] | None:
    """Return the words of the program, with `python` in front if the other launcher adds it.

    Return None if the launcher would start a program with Python that is not a Python program: `torchrun bash run.sh`.
    """
    program, keys = line.program, {each.key for each in line.typed}
    if keys & _MODULE:
        return ("python", "-m", *program)
    if not program or _NO_PYTHON in keys:
        return program
    is_started_itself = not by_python or is_python(program[0]) or program[0] == "pytest"  # msrun starts pytest directly
    if program[0].endswith(".py") or ("/" in program[0] and not is_started_itself):
        return ("python", *program)
    return program if is_started_itself else None


def _options(line: Line, *, of_mpi: bool, several: bool) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return tlaunch's options (quoted), notes on omitted options, and the options without an equivalent."""
    options: list[str] = []
    missing: list[str] = []
    left_out: dict[str, list[str]] = {}
    for each in line.typed:
        if each.counterpart.here not in {None, "--env"} and line.has_own(each.counterpart.here or ""):
            words, reason = None, f"{each.counterpart.here} is also given"
        else:
            words, reason = _words(each, of_mpi=of_mpi, several=several), _reason(each, several=several)
        options += words or ()
        if words is None:
            left_out.setdefault(reason, []).append(each.name)
            missing += [each.name] * (each.counterpart.instead == reason)
    notes = [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in left_out.items()]
    return options, notes, tuple(dict.fromkeys(missing))


def _words(each: Typed, *, of_mpi: bool, several: bool) -> Sequence[str] | None:
    """Return the equivalent words, quoted; None if there are none."""
    value, here = shell_words([each.value]), each.counterpart.here
    words: Sequence[str] | None = None
    if each.counterpart.subject not in {None, *_OF_TABLE} or each.key in {*_MODULE, _NO_PYTHON}:
        words = ()
    elif each.key == "-x" and "=" not in each.value:  # copies the variable from this shell
        words = ("--env", each.value) if several and each.value.isidentifier() else None
    elif each.key == "--mixed-precision":
        words = ("--env", f"ACCELERATE_MIXED_PRECISION={value}")
    elif here is not None:
        words = (here, value) if each.values else (here,)
    elif each.key == "--cluster-time-out":
        words = ("--env", f"MS_TOPO_TIMEOUT={value}")
    elif each.key == "--join" and each.value == "False":
        words = ("--detach",)
    elif each.key == "--mca" and of_mpi:
        words = [f"--engine-option={shell_words([word])}" for word in ("--mca", *each.values)]
    return words


def _reason(each: Typed, *, several: bool) -> str:
    if each.counterpart.subject is not None:
        return "taken from the rank table" if several else "not needed on one machine"
    if each.key == "-x":
        return f"{each.value} is not a variable name" if several else "ranks inherit the variables of this shell"
    return each.counterpart.needless or each.counterpart.instead or ""
