"""`tlaunch ckpt export` and `import`: convert checkpoints to and from the formats of other tools."""

from __future__ import annotations

import os
from pathlib import Path

import click

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import KINDS, KINDS_OF_BUFFERS, TOKENIZER, Index, read_index
from launcher.checkpoint.mindspore import MINDSPORE_SUFFIX
from launcher.checkpoint.mindspore_export import write_mindspore
from launcher.checkpoint.model_merge import CONFIG, read_config
from launcher.checkpoint.tensors import all_bytes, state_bytes
from launcher.cli.commands.ckpt.output import check_new, chosen_checkpoints, opened_with_bar, output_option
from launcher.cli.options.chosen_run import chosen_saved
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import NAME_OR_PATH, IntRange
from launcher.cli.text.stdout import write_out
from launcher.cli.training.trainer_process import check_installed, show_progress, started
from launcher.cli.training.translators import has_translation_model, translation_model
from launcher.core.errors import EXIT_OK, UnreadableError, UsageError, exit_code_of
from launcher.core.text import printable
from launcher.recipes.load import recorded_settings
from launcher.recipes.transformer.transformer_checks import check_counterparts
from launcher.recipes.transformer.transformer_settings import TransformerSettings

CONVERTER, MARIAN_CONVERTER = "launcher.trainer.checkpoint.foreign", "launcher.trainer.decode.marian"
FORMATS = DCP, MINDSPORE, TRANSFORMERS = "dcp", "mindspore", "transformers"
MAX_STEP = 10**15
EXPORT_EPILOG = """\b
Contents of the output, for each parameter NAME:
  dcp           {"model": {NAME: ...}, "step": ...,
                 "optimizer": {"state": {NAME: {"exp_avg": ...,
                               "exp_avg_sq": ..., "step": ...}}}}
  mindspore     NAME, moment1.NAME, moment2.NAME, global_step;
                for adam_weight_decay: adam_m.NAME and adam_v.NAME
  transformers  a MarianMTModel with its MarianTokenizer and the search
                of `tlaunch translate`; only for models that were trained
                with model.norm=post and model.positions=sinusoidal

\b
Examples:
  tlaunch ckpt export --format dcp --output exported/
  tlaunch ckpt export runs/RUN/checkpoints/step-500 --format mindspore \\
      --output model.ckpt
  tlaunch ckpt export runs/RUN --format transformers --output marian/

Exit codes: 0; 1 the output cannot be written; 2 wrong usage, no such checkpoint, or a damaged one; 3 the format has no
counterpart of a setting.
"""
IMPORT_EPILOG = """\b
Examples:
  tlaunch ckpt import dcp/ --format dcp --like latest --output imported/step-500
  tlaunch ckpt import model.ckpt --format mindspore --like latest \\
      --step 500 --output imported/step-500
  tlaunch run --devices 2 --resume imported/step-500
  tlaunch ckpt import marian/ --format transformers --output model/

Exit codes: 0; 1 the output cannot be written; 2 wrong usage, or PATH is unreadable or damaged; 3 PATH has another
model.
"""


@click.command(epilog=EXPORT_EPILOG)
@click.argument("checkpoint", required=False, metavar="[CHECKPOINT]", shell_complete=complete_runs_or_files)
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="Format of the output.")
@click.option(
    "--for-ctranslate2",
    is_flag=True,
    help="With transformers: write the start of the decoder as CTranslate2's converter expects it.",
)
@output_option("Directory (dcp, transformers) or file (mindspore) to create.", metavar="PATH")
@runs_dir_option
def export(*, checkpoint: str | None, form: str, for_ctranslate2: bool, output: Path, runs_dir: Path) -> int:
    """Convert a checkpoint to the format of another tool.

    The tools are torch.distributed.checkpoint, MindSpore and Hugging Face's transformers. The output has the weights,
    the optimizer's moments and the step; with transformers, only the weights.

    CHECKPOINT is a checkpoint directory. For a run or a directory of checkpoints, the newest is used. Its files are
    verified against their digests first. With transformers, CHECKPOINT can also be a model directory, and the final
    model of a run is used if there is one. The path of the output is printed to stdout.
    """
    if for_ctranslate2 and form != TRANSFORMERS:
        raise UsageError(f"--for-ctranslate2 has no effect with --format {form}", hint=f"use --format {TRANSFORMERS}")
    if form == TRANSFORMERS:
        check_new(output)
        reference = chosen_saved(runs_dir, checkpoint, has_translation_model, "translation model")
        with translation_model(runs_dir, reference) as (model, called):
            recorded = read_config(model)[1]
            check_counterparts(recorded_settings(TransformerSettings, recorded, where=str(model / CONFIG)), called)
            words = ["--for-ctranslate2"] if for_ctranslate2 else []
            return _convert(MARIAN_CONVERTER, "export", model, output, (model / MODEL).stat().st_size, *words)
    path = chosen_checkpoints(runs_dir, checkpoint)[0]
    check_new(output, path)
    index = _convertible_index(path)
    if form == DCP:
        return _convert(CONVERTER, "export", path, output, all_bytes(index) + state_bytes(index))
    if output.suffix != MINDSPORE_SUFFIX:
        raise UsageError(
            f"{output}: MindSpore requires that the file name ends with {MINDSPORE_SUFFIX}",
            hint=f"use --output {output}{MINDSPORE_SUFFIX}",
        )
    with opened_with_bar("export", path, index, state_bytes(index)) as stored:
        write_mindspore(stored, output)
    write_out(f"{printable(str(output))}\n")
    return EXIT_OK


@click.command("import", epilog=IMPORT_EPILOG)
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="Format of PATH.")
@click.option(
    "--like",
    type=NAME_OR_PATH,
    metavar="CHECKPOINT",
    help="Checkpoint of the bundled trainer that has the same model. Its settings, tokenizer and training text are "
    "reused. Required for dcp and mindspore.",
)
@click.option(
    "--step", type=IntRange(1, MAX_STEP), metavar="N", help="Step of the new checkpoint.  [default: the step in PATH]"
)
@output_option("New directory for the checkpoint or model. The name of a checkpoint like step-N must match the step.")
@runs_dir_option
def import_(*, path: Path, form: str, like: str | None, step: int | None, output: Path, runs_dir: Path) -> int:
    """Convert a checkpoint from the format of another tool.

    PATH is a directory of torch.distributed.checkpoint or a .ckpt file of MindSpore. Pass the new checkpoint to
    `tlaunch run --resume`. With transformers, PATH is a directory that `tlaunch ckpt export` wrote, or the same model
    saved again after more training. Pass the new model to `tlaunch translate`.

    Names and shapes of all parameters must match the trainer's model, as `tlaunch ckpt show` lists them. Moments that
    PATH lacks are set to zero. Code in a pickle is not run. The path of the new checkpoint is printed to stdout.
    """
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises where a name is too long
        raise UnreadableError(
            f"{path} does not exist", hint="give a torch.distributed.checkpoint directory or a MindSpore .ckpt file"
        )
    if path.is_dir() and form == MINDSPORE:
        raise UsageError(f"{path} is a directory, but a MindSpore checkpoint is a file", hint=f"use --format {DCP}")
    if path.is_file() and form != MINDSPORE:
        raise UsageError(
            f"{path} is a file, but --format {form} reads a directory",
            hint=f"give a directory, or use --format {MINDSPORE}",
        )
    if form == TRANSFORMERS:
        if like is not None or step is not None:
            raise UsageError(
                f"--like and --step have no effect with --format {form}: the model contains its settings",
                hint="leave them out",
            )
        check_new(output)
        return _convert(MARIAN_CONVERTER, "import", path, output, None)
    if like is None:
        raise UsageError(
            f"--format {form} needs --like, because its files have no settings and no tokenizer",
            hint="give a checkpoint of the same model: `--like CHECKPOINT`",
        )
    known = chosen_checkpoints(runs_dir, like)[0]
    check_new(output)
    words = ["--format", form, "--like", str(known), *(() if step is None else ("--step", str(step)))]
    return _convert(CONVERTER, "import", path, output, state_bytes(_convertible_index(known)), *words)


def _convertible_index(path: Path) -> Index:
    """Return the index of a checkpoint. Raises UsageError if the checkpoint cannot be converted."""
    index = read_index(path)
    if index.kinds == KINDS and not index.buffers and TOKENIZER in index.files:
        return index
    state = ", ".join((*index.kinds, *KINDS_OF_BUFFERS * bool(index.buffers)))
    without = "" if TOKENIZER in index.files else " without a tokenizer"
    raise UsageError(
        f"{path} (program {index.program}) cannot be converted: it contains {state}{without}, but a conversion needs "
        f"{', '.join(KINDS)} and a tokenizer",
        hint="to use the weights in other tools, write model.safetensors with `tlaunch ckpt merge`",
    )


def _convert(converter: str, action: str, source: Path, output: Path, total_bytes: int | None, *words: str) -> int:
    """Convert a checkpoint in a child process, and print the output path if the conversion succeeds."""
    check_installed()
    words = (*words, "--output", str(output.absolute()))
    with started(converter, action, str(source.absolute()), *words) as child:
        show_progress(child, action, total_bytes)
        code = exit_code_of(child.wait())
    if code == EXIT_OK:
        write_out(f"{printable(str(output))}\n")
    return code
