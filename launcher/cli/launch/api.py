"""`tlaunch.launch`: `tlaunch run` for Python programs and notebooks."""

from __future__ import annotations

import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict, TypeVar, overload

from launcher.cli.launch.function_call import FunctionCall
from launcher.cli.launch.launch_result import FunctionResult, LaunchResult, RunFailedError, finished
from launcher.cli.launch.run_handle import LauncherProcess, Run
from launcher.cli.run_options import EngineName, MindSporeWay, RunOptions
from launcher.core import errors
from launcher.core.records import Console
from launcher.core.resources import at_home, usual_runs_dir
from launcher.core.text import near
from launcher.engines.placement import Bind

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["FunctionResult", "LaunchResult", "Run", "RunFailedError", "launch"]

T = TypeVar("T")
# Keywords that are lists of strings or paths, each with an example for the hint.
LISTS = {
    "command": "['python', 'train.py']",
    "exclude": "['10.0.0.2', '10.0.0.3/7']",
    "settings": "['train.steps=400']",
    "preload": "['torch']",
    "forward_signals": "['USR1']",
    "engine_options": "['--exclusive']",
}


class LaunchOptions(TypedDict, total=False):
    """The keywords of `launch` that are options of `tlaunch run`."""

    rank_table: str | os.PathLike[str] | None
    devices: int | None
    chip: str | None
    dp: int | None
    mp: int
    pp: int
    micro_batches: int | None
    allow_idle_devices: bool
    elastic: bool
    exclude: Sequence[str]
    recipe: str | None
    config: str | None
    settings: Sequence[str]
    data: str | os.PathLike[str] | None
    source: str | os.PathLike[str] | None
    target: str | os.PathLike[str] | None
    resume: str | os.PathLike[str] | None
    init_from: str | os.PathLike[str] | None
    save_strategy: bool
    profile: bool
    device_memory: int | None
    runs_dir: str | os.PathLike[str] | None
    name: str | None
    env: Mapping[str, str] | None
    master_port: int | None
    grace: float
    max_restarts: int
    hang_timeout: float | None
    timeout: float | None
    preload: Sequence[str] | None
    no_preload: bool
    mindspore: MindSporeWay
    forward_signals: Sequence[str]
    bind: Bind
    engine: EngineName | None
    engine_options: Sequence[str]
    mpi_ranks: bool | None
    server: str | None
    join_timeout: float
    lost_after: float
    allow_different_program: bool
    coordinator_port: int | None
    console: Console | int | Sequence[int]
    progress_regex: str | None


_DEFAULTS = {name: getattr(RunOptions, name) for name in LaunchOptions.__annotations__} | {
    "runs_dir": None,  # these have other types than in RunOptions
    "env": None,
    "forward_signals": ("USR1", "USR2"),
}


@overload
def launch(
    function: Callable[..., T],
    /,
    *,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    check: bool = ...,
    wait: Literal[True] = ...,
    **options: Unpack[LaunchOptions],
) -> FunctionResult[T]: ...
@overload
def launch(
    function: Callable[..., T],
    /,
    *,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    check: bool = ...,
    wait: Literal[False],
    **options: Unpack[LaunchOptions],
) -> Run[FunctionResult[T]]: ...
@overload
def launch(
    command: Sequence[str] = ..., *, check: bool = ..., wait: Literal[True] = ..., **options: Unpack[LaunchOptions]
) -> LaunchResult: ...
@overload
def launch(
    command: Sequence[str] = ..., *, check: bool = ..., wait: Literal[False], **options: Unpack[LaunchOptions]
) -> Run[LaunchResult]: ...
def launch(
    command: Sequence[str] | Callable[..., Any] = (),
    *misplaced: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    check: bool | None = None,
    wait: bool = True,
    **options: Unpack[LaunchOptions],
) -> LaunchResult | Run[Any]:
    """Start a run as `tlaunch run` does, wait for it to end, and return its result.

    `command` is a list of arguments, or a function that every rank calls with `args` and `kwargs`. Without it, the
    bundled Transformer is trained. Each other keyword is the option of the same name (see `tlaunch run --help`). `env`
    maps names to values, sizes are in bytes, and times are in seconds.

    The result of a function has `return_values`, by rank. If ranks fail, the exception of the rank that failed first is
    raised, with a RunFailedError as its `__cause__`. If the exception cannot be pickled, or the rank did not raise one,
    the RunFailedError is raised. `check=False` returns the result instead. For commands, `check=True` raises
    RunFailedError:

        >>> result = tlaunch.launch(train, args=(0.1,), devices=4)  # doctest: +SKIP
        >>> result.return_values[0]  # doctest: +SKIP
        >>> tlaunch.launch(["python", "train.py", "--epochs", "3"], devices=4, check=True)  # doctest: +SKIP

    With `wait=False`, a Run is returned as soon as the run begins. It has `status()`, `logs(rank)`, `stop()`, `wait()`
    and `run_dir`.

    The lines that `console` selects go to `sys.stdout`, and all other output goes to `sys.stderr`. `console` may be a
    rank or a list of ranks. Output that these streams do not accept is dropped.

    In the main thread, Ctrl-C (or a notebook's interrupt) ends the run within `grace` seconds, and a second Ctrl-C ends it
    at once. KeyboardInterrupt is raised after all processes of the run have ended. The run also ends if this process does.

    In an event loop, use `await asyncio.to_thread(tlaunch.launch, ...)`. Only `tlaunch stop` ends such a run early.

    Raises:
        TlaunchError: the options, rank table, layout, program or function are invalid; nothing was started.
        RunFailedError: see above. It is a TlaunchError, too.
    """
    __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
    if getattr(sys.modules.get("__main__"), "tlaunch_is_loading", False):  # launcher/preload/call_function.py
        hint = "call tlaunch.launch below `if __name__ == '__main__':`"
        raise errors.UsageError("a rank imports this module, which calls tlaunch.launch at its top level", hint=hint)
    if unknown := options.keys() - LaunchOptions.__annotations__.keys():
        raise TypeError(f"launch() got an unexpected keyword argument {min(unknown)!r}{_keyword_for(min(unknown))}")
    if misplaced:
        raise TypeError(f"launch() takes 1 positional argument; write args={misplaced!r}")
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise errors.UsageError(f"args: {reprlib.repr(args)} is not a list or tuple", hint=f"write args=({args!r},)")
    if not callable(command) and (args or kwargs):
        hint = "add arguments of a program to the list: launch(['python', 'train.py', '--epochs', '3'])"
        raise errors.UsageError("args and kwargs are only for functions", hint=hint)
    run_options = _options({**_DEFAULTS, **options, "command": () if callable(command) else command})
    call: FunctionCall | None = None
    if callable(command):
        call = FunctionCall(command, args, kwargs or {})
        run_options = call.options(run_options)
    launcher = LauncherProcess(run_options)
    work = partial(_run, launcher, call, check=call is not None if check is None else check)
    return work() if wait else Run(launcher, work)


def _signature() -> inspect.Signature:
    """Return the signature of `launch` with all keywords and their defaults, for `help`."""
    *own, _options = inspect.signature(launch).parameters.values()
    own = [each for each in own if each.kind is not inspect.Parameter.VAR_POSITIONAL]  # only for an error
    annotations = {name: annotation.__forward_arg__ for name, annotation in LaunchOptions.__annotations__.items()}
    return inspect.Signature(
        [
            *own,
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=annotation)
                for name, annotation in annotations.items()
            ),
        ]
    )


launch.__signature__ = _signature()  # type: ignore[attr-defined]


def _run(
    launcher: LauncherProcess, call: FunctionCall | None, begin_fd: int | None = None, *, check: bool
) -> LaunchResult:
    """Run the launcher, and return the result of the run or raise its error."""
    __tracebackhide__ = True
    try:
        return finished(launcher.run(begin_fd), call, check=check)
    finally:
        if call is not None:
            call.close()


def _options(given: dict[str, Any]) -> RunOptions:
    """Convert the keyword arguments of `launch` to options. Raises UsageError if one has the wrong type."""
    given["config"] = given["config"] and at_home(given["config"])
    given["runs_dir"] = given["runs_dir"] or usual_runs_dir()
    given["env"] = _pairs(given["env"] or {})
    given["console"] = _console(given["console"])
    for name in ("rank_table", "data", "source", "target", "resume", "init_from", "runs_dir"):
        if given[name] is not None:
            path = at_home(os.fspath(given[name]))
            given[name] = path if name in {"resume", "init_from"} else Path(path)
    for name, example in LISTS.items():
        if name != "preload" or given[name] is not None:
            given[name] = _texts(name, given[name], example)
    for name in ("preload", "forward_signals"):
        given[name] = None if given[name] is None else ",".join(given[name])
    return RunOptions(**given)


def _console(given: Any) -> str:
    """Convert a rank or a list of ranks to a value for `--console`. Raises UsageError for other types than these and str."""
    if isinstance(given, str):
        return given
    ranks = given if isinstance(given, Iterable) else (given,)
    texts = [str(rank) if isinstance(rank, SupportsIndex) else "" for rank in ranks]
    if not all(texts):
        message = f"console: {reprlib.repr(given)} is not a string, a rank or a list of ranks"
        raise errors.UsageError(message, hint="write console=[0, 3]")
    return ",".join(texts)


def _texts(name: str, given: Any, example: str) -> tuple[str, ...]:
    """Convert a list of strings and paths to strings.

    Raises UsageError if the value is a single string, or contains other types.
    """
    if isinstance(given, str | bytes):
        raise errors.UsageError(f"{name} is a string, not a list of strings", hint=f"write {name}={example}")
    if not isinstance(given, Iterable):
        hint = f"write {name}={example}"
        if name == "command":
            hint = "write launch(train), not launch(train()): each rank calls the function"
        raise errors.UsageError(f"{name}: {reprlib.repr(given)} is not a list of strings", hint=hint)
    texts = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in given)
    for text in texts:
        if not isinstance(text, str):
            raise errors.UsageError(f"{name}: {reprlib.repr(text)} is not a string", hint=f"write {name}={example}")
    return texts


def _keyword_for(name: str) -> str:
    """Return "; use NAME" for a keyword that another tool or trainer calls `name`, or that has a similar name, else ""."""
    from launcher.cli.launch.external.options import counterpart  # only for mistyped keywords
    from launcher.recipes.catalog import recipe_named
    from launcher.recipes.settings import all_settings
    from launcher.recipes.synonyms import equivalents

    known, settings = LaunchOptions.__annotations__, all_settings(recipe_named(None).settings)
    found = counterpart(f"--{name}")
    names = [found.here] if found is not None and found.here is not None else []
    targets = [target for target, _ in equivalents(name, settings)]
    names += [target for target in targets if target.startswith("--")]
    keywords = [keyword for each in names if (keyword := each.lstrip("-").replace("-", "_")) in known]
    keywords += [f"settings=['{target}=VALUE']" for target in targets if target in settings]
    keywords = list(dict.fromkeys((*keywords, *near(name, known))))
    return f"; use {' or '.join(keywords)}" if keywords else ""


def _pairs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Convert environment variables to values for `--env`. Raises UsageError if a name or value is invalid."""
    hint = "write env={'NCCL_DEBUG': 'INFO'}"
    for name, value in env.items():
        if not isinstance(name, str) or "=" in name:  # not shown: the text after = may be a secret
            raise errors.UsageError("env: a variable name is not a string, or contains `=`", hint=hint)
        if not isinstance(value, str):
            raise errors.UsageError(f"env: the value of {name} is not a string", hint=hint)
    return tuple(f"{name}={value}" for name, value in env.items())
