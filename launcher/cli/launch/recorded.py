"""Options of a run as recorded in run.json, with secrets masked, and the rules by which new options override them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from launcher.cli.run_options import AUTO, OF_TRAINER, RunOptions, flag, words_of_option
from launcher.core.codec import decode, encode
from launcher.core.errors import UnreadableError
from launcher.core.resources import called_function
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import escaped
from launcher.preload.masking import MASK, masked, masked_argv
from launcher.runs.record import read_options

# Options of the command, not of the run itself.
_NOT_RECORDED = ("runs_dir", "quiet", "verbose", "detach", "dry_run", "json", "stdin")
# Option: the recorded options that it resets.
_INSTEAD_OF = {
    "rank_table": ("devices",),
    "devices": ("rank_table", "server"),
    "preload": ("no_preload",),
    "no_preload": ("preload",),
    "command": OF_TRAINER,
    "data": ("source", "target"),
    "source": ("data",),
    "target": ("data",),
    "init_from": ("resume",),
    "dry_run": ("detach",),
    "quiet": ("console", "verbose"),
    "verbose": ("quiet",),
    "console": ("quiet",),
    "stdin": ("console",),
}
ADDED = ("env", "settings")  # lists that are merged; the last value of a name wins


def to_record(options: RunOptions) -> Mapping[str, Any]:
    """Return the options that differ from their defaults, keyed by field name, with secrets masked."""
    return {
        name: encode(value)
        for name, value in vars(_masked(options)).items()
        if name not in _NOT_RECORDED and value != getattr(RunOptions, name)
    }


def _masked(options: RunOptions) -> RunOptions:
    pairs = (pair.partition("=") for pair in options.env)
    environment = tuple(f"{name}{separator}{masked(name, value)}" for name, separator, value in pairs)
    lists: dict[str, Any] = {
        name: masked_argv(getattr(options, name)) for name in ("command", "settings", "engine_options")
    }
    return replace(options, env=environment, **lists)


def recorded_options(run_dir: RunDir) -> tuple[RunOptions, Path]:
    """Return the options that a run was started with, with secrets masked, and its working directory.

    Raises UnreadableError if run.json cannot be read, does not contain the options, or the ranks called a function.
    """
    found = read_options(run_dir)
    if found is None:
        raise UnreadableError(
            f"{run_dir.run_json} does not contain the options of the run",
            hint="choose a run that `tlaunch run` started; `tlaunch exec`, job files and older versions of tlaunch "
            "do not record options",
        )
    options, cwd = found
    try:
        recorded = decode(RunOptions, options)
    except ValueError as error:
        message = f"{run_dir.run_json} contains options that this version does not support: {error}"
        raise UnreadableError(message) from error
    if (function := called_function(recorded.command)) is not None:
        message = (
            f"the ranks of {run_dir.root.name} called the Python function {escaped(function)}, which is not recorded"
        )
        raise UnreadableError(message, hint="call tlaunch.launch with the function again")
    return recorded, cwd


def given_again(recorded: RunOptions, given: Mapping[str, Any]) -> RunOptions:
    """Return the recorded options, updated with the options in `given`. Variables and settings are merged."""
    return replace(recorded, **changed(vars(recorded), given))


def changed(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new values of the fields that change when the options `given` are applied to `before`."""
    dropped = {name for option in given for name in _INSTEAD_OF.get(option, ()) if name not in given}
    if before.get("resume") == AUTO and "command" not in given:  # it only finds checkpoints with the same --init-from
        dropped.discard("resume")
    values: dict[str, Any] = {name: getattr(RunOptions, name) for name in dropped} | dict(given)
    for name in ADDED:
        if name in given:
            again = {pair.partition("=")[0] for pair in given[name]}
            kept = (pair for pair in before.get(name, ()) if pair.partition("=")[0] not in again)
            values[name] = (*kept, *given[name])
    return values


def masked_in(options: RunOptions) -> Iterator[str]:
    """Yield the options whose recorded value contains a masked secret, such as `--env NAME` or `COMMAND`."""
    for option, pairs in (("--env", options.env), ("--set", options.settings)):
        yield from (f"{option} {pair.partition('=')[0]}" for pair in pairs if MASK in pair)
    for option, words in (("--engine-option", options.engine_options), ("COMMAND", options.command)):
        if any(MASK in word for word in words):
            yield option


def as_words(options: RunOptions) -> Iterator[str]:
    """Yield the command-line words that follow `tlaunch run` for these options, with secrets masked.

    >>> list(as_words(RunOptions(devices=4, elastic=True, command=("python", "train.py"))))
    ['--devices=4', '--elastic', '--', 'python', 'train.py']
    """
    shown = _masked(options)
    for field in fields(shown):
        name, value = field.name, getattr(shown, field.name)
        if name == "command" or value == field.default:
            continue
        if isinstance(value, bool):
            yield flag(name) if value else flag(f"no_{name}")
        else:
            yield from words_of_option(name, value)
    if "--dry-run" in shown.command:  # `tlaunch run` rejects it after COMMAND unless --no-dry-run is given
        yield "--no-dry-run"
    if shown.command:
        yield from ("--", *shown.command)
