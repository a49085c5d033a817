"""The command line of the bundled trainer, from checked options."""

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
PROFILED = ("train.profile_steps=5",)  # for --profile; --set takes precedence


@frozen
class TrainerCommand:
    argv: tuple[str, ...]
    recipe: str
    layout: Layout  # the run's, except for a recipe with its own number of micro batches
    continues: ResumedFrom | None  # from --resume
    notes: tuple[str, ...]


def fits_recipe(options: RunOptions) -> Callable[[Layout], bool]:
    """Return a function that checks whether the bundled program supports a layout. The settings must be valid."""
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
    """Return the settings from options in the form of --set; the last value of a name wins."""
    return (*PROFILED * options.profile, *options.settings)


def trainer_command(options: RunOptions, layout: Layout, *, needs_data: bool = True) -> TrainerCommand:
    """Check recipe, layout and data, and return the command of the bundled trainer.

    With `needs_data` false, data are checked only if they are given.

    Raises:
        TlaunchError: recipe, layout and data do not fit together.
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
        begins = "from the beginning" if options.resume is None else "from the checkpoint of --resume"
        saves = "to resume from the last step, save checkpoints with --set checkpoint.every_steps=N"
        notes += (f"note: each restart trains {begins}; {saves}",)
    resuming, continues, more = _resumed(options, recipe.name, settings, recipe.settings(), chosen)
    argv += resuming
    return TrainerCommand(tuple(argv), recipe.name, layout, continues, (*notes, *more))


def _resumed(
    options: RunOptions, recipe: str, settings: Any, defaults: Any, chosen: Sequence[str]
) -> tuple[Sequence[str], ResumedFrom | None, Sequence[str]]:
    """Return the trainer's words for --resume, the checkpoint with its run, and notes."""
    if options.resume is None:
        return (), None, ()
    from launcher.cli.training.resume import continued, resolve_checkpoint  # only for --resume

    named = named_settings(options.config, chosen)
    checkpoint = resolve_checkpoint(options, recipe, asdict(settings), named, asdict(defaults))
    if checkpoint is None:
        return (
            (),
            None,
            ("note: --resume auto found no checkpoint with these settings; training starts from the beginning",),
        )
    continues = continued(checkpoint)
    notes: tuple[str, ...] = ()
    if continues is not None and continues.run is not None and not settings.checkpoint.is_on:
        saved = f"note: {escaped(continues.run)} saved checkpoints, but this run does not"
        notes = (f"{saved}; to save them, add --set checkpoint.every_steps=N",)
    return ("--resume", str(checkpoint)), continues, notes
