"""The bundled trainer as the program of a run: the command that its options come to, once they are known to fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.cli.run_options import RunOptions
from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.core.records import Layout, ResumedFrom
from launcher.core.resources import module_argv, stand_in_note
from launcher.logs.terminal import escaped
from launcher.recipes.catalog import recipe_named
from launcher.recipes.load import named_settings, packaged_config

TRAINER = "launcher.trainer"
PROFILED = ("train.profile_steps=5",)  # by --profile, unless it is set


@frozen
class TrainerCommand:
    argv: tuple[str, ...]
    recipe: str
    layout: Layout  # that of the run, unless the recipe has its own micro batches
    continues: ResumedFrom | None  # by --resume
    notes: tuple[str, ...]


def fits_recipe(options: RunOptions) -> Callable[[Layout], bool]:
    """Return what says whether the bundled program can train under a layout. Its settings are known to be sound."""
    recipe = recipe_named(options.recipe)
    settings = recipe.load(options.config, options.settings)

    def fits(layout: Layout) -> bool:
        try:
            recipe.check_layout(settings, recipe.own_layout(settings, layout))
        except TlaunchError:
            return False
        return True

    return fits


def chosen_settings(options: RunOptions) -> tuple[str, ...]:
    """Return what options set of the bundled program, as --set has it; the last one of a name counts."""
    return (*PROFILED * options.profile, *options.settings)


def trainer_command(options: RunOptions, layout: Layout, *, needs_data: bool = True) -> TrainerCommand:
    """Return the bundled trainer, once recipe, layout and data are known to fit each other.

    `needs_data`: it shall train; else data that are not named are not missed.

    Raises:
        TlaunchError: they do not.
    """
    recipe = recipe_named(options.recipe)
    chosen = chosen_settings(options)
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
        notes = () if packaged is None else (stand_in_note(options.config, "recipe", packaged),)
        argv += ["--config", str(path.absolute()) if path.is_file() else options.config]
    for setting in chosen:
        argv += ["--set", setting]
    notes += recipe.notes(settings, layout)
    if needs_data or options.data is not None:
        recipe.check_data(settings, options.data)
    if options.data is not None:
        argv += ["--data", str(options.data.absolute())]
    if (options.elastic or options.max_restarts) and not settings.checkpoint.is_on:
        begins = "begins the training anew" if options.resume is None else "begins where this run begins"
        saves = "--set checkpoint.every_steps=N saves checkpoints"
        notes += (f"note: each attempt {begins}; {saves}, from which the next one goes on",)
    resuming, continues, more = _resumed(options, recipe.name, settings, recipe.settings(), chosen)
    argv += resuming
    return TrainerCommand(tuple(argv), recipe.name, layout, continues, (*notes, *more))


def _resumed(
    options: RunOptions, recipe: str, settings: Any, defaults: Any, chosen: Sequence[str]
) -> tuple[Sequence[str], ResumedFrom | None, Sequence[str]]:
    """Return the words that name the checkpoint which --resume means, the training that goes on from it, and notes."""
    if options.resume is None:
        return (), None, ()
    from launcher.cli.training.resume import continued, resolve_checkpoint  # most runs begin at the beginning

    named = named_settings(options.config, chosen)
    checkpoint = resolve_checkpoint(options, recipe, asdict(settings), named, asdict(defaults))
    if checkpoint is None:
        return (
            (),
            None,
            ("note: --resume auto: no run here has a checkpoint of this training, which begins at its beginning",),
        )
    continues = continued(checkpoint)
    notes: tuple[str, ...] = ()
    if continues is not None and continues.run is not None and not settings.checkpoint.is_on:
        saved = f"note: {escaped(continues.run)} saved checkpoints, and this run saves none"
        notes = (f"{saved}; --set checkpoint.every_steps=N turns them on",)
    return ("--resume", str(checkpoint)), continues, notes
