"""The result of `tlaunch.launch`, and the exceptions for failed runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from launcher.cli.text.verdict_text import culprit_failure, headline
from launcher.core import errors
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt
from launcher.core.verdict import Verdict
from launcher.logs.terminal import printable
from launcher.runs.status import RunState, look

if TYPE_CHECKING:
    from launcher.cli.launch.function_call import FunctionCall

T = TypeVar("T")


@frozen
class LaunchResult:
    """The result of a run."""

    exit_code: int  # as of `tlaunch run`: 0 if all ranks succeeded
    run_dir: Path  # contains a log for each rank
    verdict: Verdict | None  # which rank failed first and why; None if no rank failed
    attempts: tuple[Attempt, ...]  # oldest first; more than one after restarts

    def __repr__(self) -> str:
        verdict = self.verdict
        failed = ""
        if verdict is not None:
            failed = f", culprit={verdict.culprit}, reason={textwrap.shorten(verdict.reason, 200, placeholder='...')!r}"
        return f"{type(self).__name__}(exit_code={self.exit_code}, run_dir={str(self.run_dir)!r}{failed})"


@frozen
class FunctionResult(LaunchResult, Generic[T]):
    """The result of a run whose ranks called a function."""

    return_values: tuple[T, ...] = ()  # return_values[rank]; empty if the run failed

    def __repr__(self) -> str:
        count = len(self.return_values)
        returned = f", {count} return value{'s' if count > 1 else ''}" if count else ""
        return f"{super().__repr__().removesuffix(')')}{returned})"


class RunFailedError(errors.TlaunchError):
    """A run failed, or was stopped. `result` is its LaunchResult, with the exit code and the verdict."""

    __module__ = "tlaunch"  # shown in tracebacks
    has_lines = True

    def __init__(self, message: str, result: LaunchResult) -> None:
        super().__init__(message, exit_code=result.exit_code or errors.EXIT_FAILURE)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.result)


def finished(answer: Mapping[str, Any], call: FunctionCall | None, *, check: bool) -> LaunchResult:
    """Return the result of a run from the launcher's answer. Raises the error that the answer contains.

    With `check`, raises the exception of the rank that failed first, or else RunFailedError.
    """
    __tracebackhide__ = True
    if reported := answer.get("error"):
        error: errors.TlaunchError = getattr(errors, reported["kind"])(reported["message"], hint=reported["hint"])
        error.exit_code, error.has_lines = reported["exit_code"], reported["has_lines"]
        raise error
    state = look(RunDir(Path(answer["run_dir"])))
    result = LaunchResult(answer["exit_code"], state.run_dir.root, state.verdict, state.attempts)
    if check and result.exit_code != errors.EXIT_OK:
        failed = RunFailedError("\n".join(_text(result, state)), result)
        culprit = None if result.verdict is None else result.verdict.culprit
        raised = None if call is None or culprit is None else call.raised(result.attempts[-1], culprit)
        raise failed if raised is None else raised from failed
    return result if call is None else _with_values(result, call)


def _with_values(result: LaunchResult, call: FunctionCall) -> FunctionResult[Any]:
    """Add the returned values to the result of a run. Raises RunFailedError if one is missing or cannot be loaded."""
    __tracebackhide__ = True
    if result.exit_code != errors.EXIT_OK:
        return FunctionResult(**vars(result))
    try:
        return FunctionResult(**vars(result), return_values=call.returned(result.attempts[-1]))
    except errors.TlaunchError as error:
        raise RunFailedError(f"{error.message}; logs in {result.run_dir}", result) from error.__cause__


def _text(result: LaunchResult, state: RunState) -> Iterator[str]:
    """Yield the lines of the message for a failed run."""
    from launcher.cli.text.run_text import describe_run, shown_name  # only for failed runs

    if (verdict := result.verdict) is None:
        yield f"{shown_name(state)}: {describe_run(state)}; logs in {result.run_dir}"
        return
    failure = culprit_failure(verdict)
    yield f"{headline(verdict)}; logs in {result.run_dir}"
    yield f"  {verdict.confidence.value}: {printable(failure.reason if failure else verdict.reason)}"
    if failure is not None and failure.traceback is not None:
        yield from map(printable, failure.traceback.rstrip().split("\n"))
