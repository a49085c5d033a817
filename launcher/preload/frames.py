"""Format the program's frames and tracebacks as text. When a rank fails, this imports only `re`."""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")

_MAX_SOURCE_CHARS = 500  # in a line of code
_MAX_CAPTURED_CHARS = 4000  # in the output of a failed command
_MAX_MASKED_CHARS = 64_000  # in a message or traceback
HEADER = "Traceback (most recent call last):\n"
LINK_OF_CAUSE = "The above exception was the direct cause of the following exception:"
LINK_OF_CONTEXT = "During handling of the above exception, another exception occurred:"
CAPTURED = "The command had written:"
_HERE = os.path.dirname(os.path.abspath(__file__)) + "/"
_PACKAGE = os.path.dirname(_HERE[:-1]) + "/"  # tlaunch itself
# The standard library of any Python, installed packages, and frames that Python or tlaunch put below the program.
_LIBRARIES = (
    "/lib/python3.",
    "/lib/python3/",
    "/lib64/python3.",
    "/lib64/python3/",
    f"{os.path.dirname(os.__file__)}/",
)
_OTHERS = ("/site-packages/", "/dist-packages/", "<frozen ", "/launcher/preload/", *_LIBRARIES, _HERE)


def of_program(traceback: TracebackType | None, error: BaseException | None = None) -> TracebackType | None:
    """Return the traceback without this package's outermost frames.

    If tlaunch raised the error on purpose (TlaunchError), the traceback ends at the program's line that caused it.
    """
    while traceback is not None and _is_own(traceback.tb_frame):
        traceback = traceback.tb_next
    if traceback is None or not any(cls.__name__ == "TlaunchError" for cls in type(error).__mro__):
        return traceback
    kept = []
    at: TracebackType | None = traceback
    while at is not None:
        kept.append(at)
        at = at.tb_next
    while kept:
        file = kept[-1].tb_frame.f_code.co_filename
        if is_of_program(file) and not file.startswith(_PACKAGE):
            break
        kept.pop()
    else:
        return traceback
    for each in reversed(kept):
        at = type(traceback)(at, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return at


def places(traceback: TracebackType | None) -> list[tuple[str, int, str]]:
    """Return the file, line and function of every frame, from the outermost to the innermost."""
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found


def places_of_stack(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """Return the file, line and function of a running frame and its callers, without this package's frames."""
    found: list[tuple[str, int, str]] = []
    while frame is not None:
        if not _is_own(frame):
            found.insert(0, (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found


def where(found: list[tuple[str, int, str]]) -> str | None:
    """Return the innermost frame, preferably in the program's own code, as "train.py:88 in step"."""
    if not found:
        return None
    file, line, function = innermost(found, lambda place: place[0])
    return f"{os.path.basename(file)}:{line}" + (f" in {function}" if function else "")


def where_of_exit(found: list[tuple[str, int, str]]) -> str | None:
    """Return the place where the program exited, or None if tlaunch's own code exited after printing the reason."""
    return None if found and found[-1][0].startswith(_PACKAGE) else where(found)


def innermost(frames: Sequence[T], file_of: Callable[[T], str]) -> T:
    """Return the last frame in the program's own code, or the last frame if none is in the program's code."""
    return next((frame for frame in reversed(frames) if is_of_program(file_of(frame))), frames[-1])


def is_of_program(file: str) -> bool:
    """Return True if a file belongs to the program, and not to Python, an installed package or tlaunch."""
    file = file.replace("\\", "/")
    return not any(part in file for part in _OTHERS)


def text(error: BaseException | None, found: list[tuple[str, int, str]]) -> str:
    """Format a traceback. The `traceback` module is used only if it is already loaded."""
    library: Any = sys.modules.get("traceback")
    if error is not None and hasattr(library, "format_exception"):
        shown = "".join(library.format_exception(type(error), error, of_program(error.__traceback__, error)))
        return shown + _captured(error)
    lines = [HEADER, *map(_frame, found)]
    if error is None:
        return "".join(lines)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        link = LINK_OF_CAUSE if cause is error.__cause__ else LINK_OF_CONTEXT
        before = text(cause, places(cause.__traceback__)).removeprefix("" if cause.__traceback__ else HEADER)
        lines.insert(0, f"{before}\n{link}\n\n")
    place = _syntax_error_lines(error)
    said = error.msg if place and isinstance(error, SyntaxError) else message(error)
    named = f"{kind(error)}: {said}\n" if said else f"{kind(error)}\n"
    notes = getattr(error, "__notes__", None)  # of `add_note` (PEP 678)
    noted = "".join(f"{message(note)}\n" for note in notes) if isinstance(notes, list | tuple) else ""
    return "".join(lines) + place + named + noted + _parts(error) + _captured(error)


def shortened(traceback: str, found: list[tuple[str, int, str]], max_chars: int) -> str:
    """Shorten a traceback to its last lines, but keep the innermost frame of the program's own code.

    This frame would be cut off, for instance, by an endless recursion inside a library.
    """
    if len(traceback) <= max_chars:
        return traceback
    kept = traceback[-max_chars:]
    kept = kept.partition("\n")[2] or kept
    own = next((place for place in reversed(found) if is_of_program(place[0])), None)
    if own is None or _frame(own) in kept:
        return kept
    return f"{HEADER}{_frame(own)}  [lines left out]\n{kept}"


def without_secrets(text: str) -> str:
    """Return the end of a text with secrets masked, or an empty string if masking fails."""
    path = sys.path
    sys.path = [os.path.dirname(os.__file__)]  # the program may have a `re.py`
    try:
        from .masking import masked_text

        return masked_text(text[-_MAX_MASKED_CHARS:])
    except Exception:
        return ""
    finally:
        sys.path = path


def _frame(place: tuple[str, int, str]) -> str:
    file, line, function = place
    return f'  File "{file}", line {line}, in {function}\n{_source(file, line)}'


def place_of_syntax_error(error: BaseException | None) -> list[tuple[str, int, str]]:
    """Return the file and line of a SyntaxError, as a list like `places`. For other exceptions, the list is empty."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and isinstance(error.lineno, int):
        return [(error.filename, error.lineno, "")]
    return []


def _syntax_error_lines(error: BaseException) -> str:
    lines = ""
    for file, line, _ in place_of_syntax_error(error):
        code = getattr(error, "text", None)
        code = code.strip()[:_MAX_SOURCE_CHARS] if isinstance(code, str) else ""
        shown = f"    {code}\n" if code else _source(file, line)
        lines = f'  File "{file}", line {line}\n{shown}'
    return lines


def _captured(error: BaseException) -> str:
    """Return the last complete lines of the output that `subprocess.run` captured from a failed command.

    A partial line could contain a secret without the name that identifies it as one.
    """
    if type(error).__name__ != "CalledProcessError":
        return ""
    output = getattr(error, "stderr", None) or getattr(error, "output", None)
    if isinstance(output, bytes):
        output = output[-4 * (_MAX_CAPTURED_CHARS + 1) :].decode("utf-8", "replace")  # at most four bytes a character
    if not isinstance(output, str):
        return ""
    if len(output) > _MAX_CAPTURED_CHARS:
        output = output[-_MAX_CAPTURED_CHARS:].partition("\n")[2]
    return f"\n{CAPTURED}\n{output}\n" if output.strip() else ""


def _parts(error: BaseException) -> str:
    """Format the members of an exception group as Python does. Other exceptions give an empty string."""
    group = getattr(builtins, "BaseExceptionGroup", None)  # since Python 3.11
    if group is None or not isinstance(error, group):
        return ""
    shown = ""
    for number, part in enumerate(error.exceptions, 1):
        lines = text(part, places(part.__traceback__)).removeprefix("" if part.__traceback__ else HEADER).splitlines()
        shown += f"  {'+-+' if number == 1 else '  +'}---------------- {number} ----------------\n"
        shown += "".join(f"    | {line}\n" for line in lines)
    return f"{shown}    +------------------------------------\n"


def message(value: object) -> str:
    """Return `str(value)`, or a placeholder if the value's `__str__` raises an exception."""
    try:
        return str(value)
    except BaseException:
        return f"<{type(value).__name__} that cannot be shown>"


def kind(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def _source(file: str, line: int) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            for number, text_of_line in enumerate(lines, 1):
                if number == line:
                    return f"    {text_of_line.strip()[:_MAX_SOURCE_CHARS]}\n"
    except (OSError, ValueError):
        pass
    return ""


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_HERE) or frame.f_globals.get("__package__") == "_tlaunch_preload"
