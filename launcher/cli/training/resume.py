"""Resolve the checkpoints and models that `--resume`, `--init-from` and `tlaunch ckpt` refer to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.checkpoint.dcp import DCP_METADATA
from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import (
    Index,
    best_of,
    checkpoints_in,
    is_checkpoint,
    read_index,
    readable,
    step_named,
    written_ns,
)
from launcher.checkpoint.initial_model import check_initial
from launcher.checkpoint.mindspore import MINDSPORE_SUFFIX
from launcher.checkpoint.same_settings import as_set, check_settings, difference_text, differing_settings
from launcher.cli.run_options import AUTO, RunOptions
from launcher.cli.text.run_text import continued_from
from launcher.cli.text.stdout import as_argument
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.machine.owner import is_trusted_in, uids_of_file
from launcher.core.records import ResumedFrom
from launcher.core.resources import at_home
from launcher.core.run_dir import LATEST, RunDir
from launcher.core.text import shell_word, shell_words, some_of
from launcher.logs.terminal import escaped
from launcher.runs.record import continued_by
from launcher.runs.store import find_run, find_runs, given_names, means_latest, run_names

BEST = "best"  # the name of the best checkpoint in its directory
SHOWN = 8  # checkpoints or settings listed in a message
PACKAGED_DATA = "the packaged sample"


def resolve_checkpoint(
    options: RunOptions, program: str, settings: Mapping[str, Any], named: Collection[str], defaults: Mapping[str, Any]
) -> tuple[Path | None, str]:
    """Return the checkpoint or checkpoint directory to resume from, or None and a note if "auto" finds no checkpoint.

    `named` has the names of the settings that the user has set, and `defaults` the default values of all settings.
    Raises UnreadableError if the checkpoint or run does not exist, and UsageError if a prefix matches several runs or
    the newest checkpoint has another program or other settings.
    """
    if options.resume == AUTO:
        return _newest_fitting(options, program, settings, named, defaults)
    assert options.resume is not None
    newest, *others = resolve_checkpoints(options.runs_dir, options.resume)
    for path, index in readable([newest, *others]):
        if index.data and index.program == program and not options.data_paths:
            raise UsageError(
                f"{path} was trained with {index.data}, but this run uses the built-in corpus",
                hint=_rerun(path, "--resume", *_set_words(options, index))
                or "give its data with --data, or --source and --target",
            )
        try:
            check_settings(path, index, program, settings, named, defaults=defaults)
        except UsageError as error:
            if (again := _rerun(path, "--resume")) is not None:
                or_else = "" if error.hint is None else f"; or {error.hint}"
                error.hint = f"to keep the settings, use {again}{or_else}"
            raise
        break
    return newest.parent if others else newest, ""


def check_text(options: RunOptions, checkpoint: Path, digest: str) -> None:
    """Raise UsageError if the training data of a checkpoint to resume from has another digest than this run's."""
    index = read_index(checkpoint)
    if index.text == digest:
        return
    ours, theirs = " ".join(str(path.absolute()) for path in options.data_paths), index.data or PACKAGED_DATA
    found = "which has changed since" if theirs == ours else f"but this run has {ours}"
    data = ("data", options.data), ("source", options.source), ("target", options.target)
    words = [word for name, path in data if path is not None for word in (f"--{name}", str(path))]
    again = (
        _rerun(checkpoint, "--init-from", *words, *_set_words(options, index)) or "use --init-from in place of --resume"
    )
    raise UsageError(
        f"{checkpoint} was trained with {theirs}, {found}",
        hint=f"to start a new training on this data from the model of the checkpoint: {again}",
    )


def _rerun(checkpoint: Path, option: str, *words: str) -> str | None:
    """Return the command that repeats the run of a checkpoint, with its name as value of `option`, or None."""
    run = RunDir(checkpoint.parents[1])
    if not run.run_json.is_file():
        return None
    name = as_argument(run)
    return f"`tlaunch rerun {name} {option} {name} {shell_words(words)}".rstrip() + "`"


def _set_words(options: RunOptions, index: Index) -> Iterator[str]:
    """Yield --set for the settings of this run that the training of a checkpoint did not have."""
    for setting in options.settings:
        name, _, value = (part.strip() for part in setting.partition("="))
        section, _, key = name.partition(".")
        if as_set(index.settings.get(section, {}).get(key)) != value:
            yield from ("--set", setting)


def _newest_fitting(
    options: RunOptions, program: str, settings: Mapping[str, Any], named: Collection[str], defaults: Mapping[str, Any]
) -> tuple[Path | None, str]:
    """Return the directory of the newest checkpoint with these settings, or None and how the nearest one differs."""
    data = " ".join(str(path.absolute()) for path in options.data_paths)
    init_from, is_removed = options.init_from or "", False
    if _means_newest(options.runs_dir, init_from):
        raise UsageError(
            f"--resume auto cannot be combined with --init-from {escaped(init_from)}, which means another run after each start",
            hint="give the run's full name or the path of its model; `tlaunch ps --all` lists runs",
        )
    if options.init_from is not None:
        try:
            init_from = str(resolve_model(options.runs_dir, init_from))
        except UnreadableError:  # raised again if no checkpoint fits
            is_removed = True
    tokenizer, digest = _tokenizer(settings), ""
    with suppress(OSError):  # `recipe.check_data` has read it, except for `explain --settings`
        digest = hashlib.sha256(Path(at_home(tokenizer)).read_bytes()).hexdigest() if tokenizer else ""
    found: list[tuple[list[str], Path]] = []
    for path, index in _indexed(options.runs_dir):
        differences = list(differing_settings(index, settings, named, defaults=defaults))
        is_same = is_removed and _is_removed_model(index.init_from, options.runs_dir, init_from)
        for name, theirs, ours, absent in (
            ("--data", index.data, data, PACKAGED_DATA),
            ("--init-from", index.init_from, index.init_from if is_same else init_from, "none"),
            ("data.tokenizer", index.tokenizer if tokenizer else _tokenizer(index.settings), digest, "none"),
        ):
            if theirs != ours:
                differences.append((name, theirs or absent, ours or absent))
        if index.program == program:
            found.append(([*map(difference_text, differences)], path))
    if not found:
        return None, ""
    differing, nearest = min(found, key=lambda pair: (len(pair[0]), -written_ns(pair[1])))
    if not differing:
        return nearest.parent, ""  # the directory, so that ranks can skip a damaged checkpoint
    return None, f"{nearest.name} of {escaped(nearest.parents[1].name)} differs in {some_of(differing, SHOWN)}"


def initial_model(
    options: RunOptions,
    continues: ResumedFrom | None,
    program: str,
    settings: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]],
) -> str | None:
    """Return the path of the trainer's initial model, or None. `continues` is the checkpoint to resume from.

    Raises UnreadableError if the model is missing or damaged, and UsageError if it does not fit the settings.
    """
    if continues is not None:  # its initial model may be gone; ranks use the tokenizer of the checkpoint
        return read_index(continues.checkpoint).init_from or None
    if options.init_from is None:
        return None
    model = resolve_model(options.runs_dir, options.init_from)
    check_initial(model, program, settings, defaults)
    return str(model)


def initial_without_effect(options: RunOptions, checkpoint: Path, source: str | None) -> Iterator[str]:
    """Yield a note if --init-from differs from `source`, the initial model of the checkpoint to resume from."""
    if options.init_from is None:
        return
    given = Path(options.init_from).absolute()
    with suppress(TlaunchError):  # it may be gone
        given = resolve_model(options.runs_dir, options.init_from)
    if str(given) != source:
        begin = escaped(source or "random weights")
        yield f"note: --init-from {escaped(options.init_from)} has no effect: {checkpoint.name} is of a training from {begin}"


def _tokenizer(settings: Mapping[str, Any]) -> str:
    return str(settings.get("data", {}).get("tokenizer", ""))


def _means_newest(runs_dir: Path, reference: str) -> bool:
    """Return True if `reference` names a run by its age: `latest`, or a --name that several runs share."""
    with suppress(TlaunchError):  # it may be a model or a checkpoint, or removed
        return any(map(means_latest, Path(reference).parts)) or len(find_runs(runs_dir, reference)) > 1
    return False


def _is_removed_model(path: str, runs_dir: Path, reference: str) -> bool:
    """Return True if `reference` meant the model or checkpoint at `path`, or its run, before it was removed."""
    model = Path(path)
    run = RunDir(model.parent if step_named(model.name) is None else model.parent.parent)
    places = {Path(reference).absolute(), (runs_dir / reference).absolute()}
    if model not in {run.model, run.checkpoints / model.name}:
        return model in places
    names = (run.root.name, *given_names([run.root.name])[run.root.name])
    return any(name.startswith(reference) for name in names) or not places.isdisjoint({model, model.parent, run.root})


def resolve_model(runs_dir: Path, reference: str) -> Path:
    """Return the directory of a trained model, or a checkpoint. `reference` is a model directory, a run or a checkpoint.

    For a run, this is its final model, or its newest checkpoint if there is no model yet. Raises UnreadableError if
    there is neither, and UsageError if `reference` is a prefix of several run names.
    """
    places = _paths(runs_dir, reference)
    with suppress(TlaunchError):  # the reference may be a checkpoint
        places.append(find_run(runs_dir, reference).model)
    found = (place for place in map(_of_its_run, places) if _is_model(place))
    return (next(found, None) or resolve_checkpoints(runs_dir, reference)[0]).absolute()


def resolve_checkpoints(runs_dir: Path, reference: str) -> list[Path]:
    """Return the checkpoints of a run or directory, newest first. For a checkpoint, return only this checkpoint.

    Paths may be relative to the runs directory: `latest/checkpoints/step-500`. They may begin with the --name of a run,
    and `best` means the best checkpoint of a directory: `NAME/checkpoints/best`. Raises UnreadableError if no checkpoint is
    found, and UsageError if `reference` is a prefix of several run names.
    """
    places = _paths(runs_dir, reference)
    for path in map(_of_its_run, places):
        if (
            path.name == BEST
            and not os.path.lexists(path)
            and (best := best_of(readable(checkpoints_in(path.parent)))) is not None
        ):
            return [best.absolute()]
        if is_checkpoint(path):
            return [path.absolute()]
        if found := checkpoints_in(path):
            return [each.absolute() for each in found]
    try:
        run = find_run(runs_dir, reference)
    except UnreadableError as error:
        for path in places:
            if (missing := _missing(path, reference)) is not None:
                raise missing from None
        if means_latest(reference):
            raise
        is_directory = any(map(os.path.isdir, places))
        reason = "the directory contains no checkpoints" if is_directory else "there is no such checkpoint, either"
        raise UnreadableError(f"{error.message}; {reason}", hint=error.hint) from None
    if not (found := checkpoints_in(run.checkpoints)):
        raise _none_of_run(reference, run)
    return [each.absolute() for each in found]


def names_a_run(runs_dir: Path, reference: str) -> bool:
    """Return True if `reference` names a run, and the path `reference` contains neither checkpoints nor a model."""
    path = Path(reference)
    if is_checkpoint(path) or checkpoints_in(path) or _is_model(path):
        return False
    with suppress(TlaunchError):
        return find_run(runs_dir, reference).root != path.resolve()
    return False


def _paths(runs_dir: Path, reference: str) -> list[Path]:
    """Return the paths that `reference` may mean: itself, one in the runs directory, or one in the run of that name."""
    if not reference:
        return []
    paths = [Path(reference), runs_dir / reference]
    name, _, inner = reference.partition("/")
    if name and inner:
        with suppress(TlaunchError):
            paths.append(find_run(runs_dir, name).root / inner)
    return paths


def _is_model(path: Path) -> bool:
    # A checkpoint may contain a file with the same name.
    return os.path.isfile(path / MODEL) and not is_checkpoint(path)  # noqa: PTH113 - Path.is_file raises for long names


def _of_its_run(path: Path) -> Path:
    """Resolve the link "latest" in a path, because the link changes when the next run starts."""
    for latest in path.parents:
        if latest.name == LATEST and latest.is_symlink():
            return latest.resolve() / path.relative_to(latest)
    return path


def _missing(path: Path, reference: str) -> UnreadableError | None:
    """Return the error for a checkpoint that does not exist or that another tool wrote."""
    tool = None
    if os.path.isfile(path / DCP_METADATA):  # noqa: PTH113 - a name may be too long
        tool, form = "torch.distributed.checkpoint", "dcp"
    elif path.suffix == MINDSPORE_SUFFIX and os.path.isfile(path):  # noqa: PTH113 - as above
        tool, form = "MindSpore", "mindspore"
    if tool is not None:
        return UnreadableError(
            f"{escaped(reference)} looks like a checkpoint of {tool}",
            hint=f"convert it: `tlaunch ckpt import {shell_word(reference)} --format {form} --like RUN --output DIR`",
        )
    why = f"{escaped(reference)}: this checkpoint does not exist"
    if path.name == BEST and (others := checkpoints_in(path.parent)):
        why = f"{escaped(reference)}: none of these checkpoints was validated, so none is known to be the best"
        return UnreadableError(why, hint=f"choose from {_names_of(others)}; train.validate_every=N validates")
    directory = path.parent if step_named(path.name) is not None else path
    if others := checkpoints_in(directory):
        return UnreadableError(why, hint=f"choose from {_names_of(others)}")
    if directory != path and (others := checkpoints_in(RunDir(directory).checkpoints)):  # RUN/step-120
        there = RunDir(Path(reference).parent).checkpoints
        hint = f"choose from {_names_of(others)} in {escaped(str(there))}"
        if path.name in {each.name for each in others}:
            hint = f"use {escaped(str(there / path.name))}"
        return UnreadableError(why, hint=hint)
    run = RunDir(directory.parent)
    is_of_run = directory == run.checkpoints and os.path.isfile(run.run_json)  # noqa: PTH113 - a name may be too long
    return _none_of_run(reference, run) if is_of_run else None


def _names_of(checkpoints: Sequence[Path]) -> str:
    return some_of([path.name for path in checkpoints], SHOWN)


def _none_of_run(reference: str, run: RunDir) -> UnreadableError:
    hint = "use --set checkpoint.every_steps=N to save checkpoints more often"
    if (before := continued_by(run)) is not None:
        hint = f"name the run that it was resumed from, {continued_from(before)}, or {hint}"
    return UnreadableError(f"{escaped(reference)}: this run has no checkpoint", hint=hint)


def continued(meant: Path) -> ResumedFrom | None:
    """Return the newest readable checkpoint at a path and the name of its run, or None if none is readable."""
    for path, index in readable([meant] if is_checkpoint(meant) else checkpoints_in(meant)):
        run = path.parent.parent
        return ResumedFrom(path, index.step, run.name if RunDir(run).run_json.is_file() else None)
    return None


def _indexed(runs_dir: Path) -> Iterator[tuple[Path, Index]]:
    """Yield all checkpoints with a readable index, except those in runs of other users."""
    for name in run_names(runs_dir):
        if all(is_trusted_in(uid, runs_dir) for uid in uids_of_file(runs_dir / name)):
            yield from readable(path.absolute() for path in checkpoints_in(RunDir(runs_dir / name).checkpoints))
