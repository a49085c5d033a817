"""Check options for the bundled trainer, and create its command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from launcher.cli.run_options import RunOptions
from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.core.records import Layout, ResumedFrom
from launcher.core.resources import module_argv, stand_in_note
from launcher.core.run_dir import SETTINGS
from launcher.core.text import printable, shell_words, some_of
from launcher.preload.masking import MASK
from launcher.recipes.catalog import Recipe, recipe_named
from launcher.recipes.load import named_settings, origins, packaged_config, read_settings
from launcher.recipes.settings import all_settings, as_toml

TRAINER = "launcher.trainer"
PROFILED = ("train.profile_steps=5",)  # for --profile; --set takes precedence


@frozen
class TrainerCommand:
    argv: tuple[str, ...]
    recipe: str
    layout: Layout  # the run's, except for a recipe with its own number of micro batches
    continues: ResumedFrom | None  # from --resume
    init_from: str | None  # path of the initial model
    notes: tuple[str, ...]


def fits_recipe(options: RunOptions) -> Callable[[Layout], bool]:
    """Return a function that checks whether the bundled program supports a layout."""

    @cache  # loaded by the first call; errors are reported by `trainer_command`
    def loaded() -> tuple[Recipe, Any]:
        recipe = recipe_named(options.recipe)
        return recipe, recipe.load(options.config, options.settings)

    def fits(layout: Layout) -> bool:
        try:
            recipe, settings = loaded()
            recipe.check_layout(settings, recipe.own_layout(settings, layout))
        except TlaunchError:
            return False
        return True

    return fits


def chosen_settings(options: RunOptions) -> tuple[str, ...]:
    """Return the trainer settings from the options as KEY=VALUE. The last value for a name wins."""
    return (*PROFILED * options.profile, *options.settings)


def trainer_command(options: RunOptions, layout: Layout, *, needs_data: bool = True) -> TrainerCommand:
    """Check that recipe, layout and data fit together, and return the command of the bundled trainer.

    If `needs_data` is false, training data is checked only if it is given.
    """
    recipe = recipe_named(options.recipe)
    chosen = chosen_settings(options)
    given, options = options.config, replace(options, config=recipe.config_called(options.config))
    settings = recipe.load(options.config, chosen)
    if options.micro_batches is None:
        layout = replace(layout, micro_batches=settings.train.micro_batches)
    layout = recipe.own_layout(settings, layout)
    recipe.check_layout(settings, layout)
    argv = [*module_argv(TRAINER), *["--save-strategy"] * options.save_strategy]
    notes: tuple[str, ...] = ()
    if options.recipe is not None:
        argv += ["--recipe", recipe.name]
    if options.config is not None:
        path, packaged = Path(options.config), packaged_config(options.config)
        if packaged is not None and given is not None and not given.startswith(("recipes/", "templates/")):
            notes = (stand_in_note(given, "recipe", packaged),)
        argv += ["--config", str(path.absolute()) if path.is_file() else options.config]
    for setting in chosen:
        argv += ["--set", setting]
    notes += recipe.notes(settings, layout)
    data = options.data_paths
    if needs_data or data:
        recipe.check_data(settings, data)
        settings = recipe.with_data(settings, data)
        notes += recipe.data_notes(settings, data)
    for name, file in (("--data", options.data), ("--source", options.source), ("--target", options.target)):
        argv += [] if file is None else [name, str(file.absolute())]
    if (options.elastic or options.max_restarts) and not settings.checkpoint.enabled:
        begins = "from the beginning" if options.resume is None else "from the checkpoint of --resume"
        notes += (f"note: checkpoint.enabled is false, so each restart trains {begins}",)
    resuming, continues, more = _resumed(options, recipe, settings, chosen)
    argv += resuming
    init_from, ignored = _initial(options, continues, recipe.name, settings, recipe.settings())
    argv += [] if init_from is None else ["--init-from", init_from]
    return TrainerCommand(tuple(argv), recipe.name, layout, continues, init_from, (*notes, *more, *ignored))


def _resumed(
    options: RunOptions, recipe: Recipe, settings: Any, chosen: Sequence[str]
) -> tuple[Sequence[str], ResumedFrom | None, Sequence[str]]:
    if options.resume is None:
        return (), None, ()
    from launcher.cli.training.resume import check_text, continued, resolve_checkpoint  # only for --resume

    named = named_settings(options.config, chosen)
    checkpoint, nearest = resolve_checkpoint(options, recipe.name, asdict(settings), named, asdict(recipe.settings()))
    if checkpoint is None:
        note = "note: --resume auto found no checkpoint with these settings; training starts from the beginning"
        return (), None, (f"{note}; {nearest}" if nearest else note,)
    continues = continued(checkpoint)
    if continues is not None and recipe.text_digest is not None and options.data_paths:
        check_text(options, continues.checkpoint, recipe.text_digest(settings, options.data_paths))
    steps, epochs = settings.train.steps, settings.train.epochs
    ignored = steps and any(text.partition("=")[0].strip() == "train.epochs" for text in chosen)
    note = f"note: train.steps = {steps} ends the training, so train.epochs = {epochs} has no effect; to train for"
    return (
        ("--resume", str(checkpoint)),
        continues,
        (f"{note} {epochs} epochs, add `--set train.steps=0`",) * bool(ignored),
    )


def _initial(
    options: RunOptions, continues: ResumedFrom | None, recipe: str, settings: Any, defaults: Any
) -> tuple[str | None, Sequence[str]]:
    """Return the initial model, or None, and a note if --init-from has no effect."""
    if continues is None and options.init_from is None:
        return None, ()
    from launcher.cli.training.resume import initial_model, initial_without_effect  # for --resume and --init-from

    model = initial_model(options, continues, recipe, asdict(settings), asdict(defaults))
    return model, () if continues is None else [*initial_without_effect(options, continues.checkpoint, model)]


DEFAULT = "default"
SHOWN = 8  # changed settings in a message
MICRO_BATCHES = "train.micro_batches"


@frozen
class EffectiveSetting:
    name: str
    value: Any
    default: Any  # None for entries with a name that the user chose
    origin: str  # "default", a line of a file, or an option


def effective_settings(options: RunOptions, layout: Layout) -> tuple[EffectiveSetting, ...]:
    """Return all settings of the bundled program, in the order of its template.

    `layout` is the checked layout of the run.
    """
    recipe, chosen = recipe_named(options.recipe), chosen_settings(options)
    values = dataclasses.asdict(recipe.load(options.config, chosen))
    given = origins(recipe.settings, recipe.config_called(options.config), chosen)
    by_profile = {text.partition("=")[0]: f"--set {text}" for text in PROFILED} if options.profile else {}
    given = {name: "--profile" if by_profile.get(name) == where else where for name, where in given.items()}
    if options.micro_batches is not None:
        values["train"]["micro_batches"] = layout.micro_batches
        given[MICRO_BATCHES] = "--micro-batches"
    known = all_settings(recipe.settings)
    return tuple(
        EffectiveSetting(
            f"{section}.{key}", value, known[f"{section}.{key}"].default if f"{section}.{key}" in known else None,
            given.get(f"{section}.{key}", DEFAULT),
        )
        for section, entries in values.items()
        for key, value in entries.items()
    )  # fmt: skip


def changed_file(options: RunOptions, recorded: Path, cwd: Path) -> str | None:
    """Return a text about changes of a run's --config file since its settings were `recorded`, or None without changes.

    `options` are the recorded options of the run, and `cwd` is its working directory.
    """
    assert options.config is not None
    was = {name: as_toml(value) for name, value in read_settings(recorded).items()}
    file = cwd / options.config
    try:
        found = effective_settings(
            replace(options, config=str(file) if file.is_file() else options.config),
            Layout(micro_batches=options.micro_batches or 1),
        )
    except TlaunchError as error:
        return error.message
    now = {each.name: as_toml(each.value) for each in found}
    changes = [
        f"{name} = {now.get(name, 'none')} (recorded: {was.get(name, 'none')})"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    return f"{options.config} has changed: {some_of(changes, SHOWN)}" if changes else None


def changed_settings(options: RunOptions, layout: Layout) -> list[str]:
    """Return the settings with other values than their defaults, such as "train.steps=5"."""
    return [
        printable(f"{each.name}={as_toml(each.value)}")
        for each in effective_settings(options, layout)
        if each.origin != DEFAULT and each.value != each.default
    ]


def without_settings(options: RunOptions) -> RunOptions:
    """Remove the options that change settings of the trainer. Keep the options for data, devices and layout."""
    return replace(options, config=None, settings=(), profile=False, micro_batches=None, dry_run=False)


def toml_lines(settings: Sequence[EffectiveSetting], others: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a --config file with all settings. Comments give the origin of each setting.

    The first line is a comment with the command that repeats the run from this file; `others` are its other options.
    """
    command = shell_words(("tlaunch", "--no-config", "run", *others, f"--config={SETTINGS}"))
    filled_in = ", and fill in the masked values" if MASK in command else ""
    yield f"# To repeat the run, save this file as {SETTINGS} and run `{command}`{filled_in}."
    yield ""
    for section, of_section in groupby(settings, lambda each: each.name.partition(".")[0]):
        yield f"[{section}]"
        for each in of_section:
            key = each.name.partition(".")[2]
            was = "" if each.origin == DEFAULT or each.default is None else f"; default {as_toml(each.default)}"
            is_bare = re.fullmatch(r"[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*", key)
            yield f"{key if is_bare else as_toml(key)} = {as_toml(each.value)}  # {printable(each.origin)}{was}"
        yield ""
