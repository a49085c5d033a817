"""Names that other tools use: each leads to a setting or an option that exists, and the documentation agrees."""

import re
from pathlib import Path

import click
import pytest

from launcher.cli.main import tlaunch
from launcher.cli.options.run import RUN_PARAMETERS
from launcher.core.errors import UsageError
from launcher.recipes.catalog import RECIPES
from launcher.recipes.load import load_settings
from launcher.recipes.settings import all_settings
from launcher.recipes.synonyms import NAMES, SWITCHES, VALUES, equivalents
from launcher.recipes.synonyms import OPTIONS as OF_OTHER_COMMANDS
from launcher.recipes.transformer.transformer_settings import TransformerSettings

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = {name: field for recipe in reversed(RECIPES.values()) for name, field in all_settings(recipe.settings).items()}
OPTIONS = {option for param in RUN_PARAMETERS for option in param.opts}


def rows(page):
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and line.count(" | ") == 1:
            yield line.strip("| ").split(" | ")


def test_each_name_leads_to_a_setting_or_an_option_that_exists():
    assert NAMES.keys() <= KNOWN.keys() | OPTIONS
    for name, value in SWITCHES.values():
        assert value in KNOWN[name].metadata["bounds"].choices
    chosen = {choice for field in KNOWN.values() for choice in field.metadata["bounds"].choices}
    assert set(VALUES.values()) <= chosen
    assert not chosen & VALUES.keys()
    settings = {name.partition(".")[2] for name in KNOWN}
    assert not settings & {word.rstrip("*") for names in NAMES.values() for word in names.split()}
    assert not settings & SWITCHES.keys()


def test_each_option_of_another_command_exists():
    commands, known = [tlaunch], set()
    while commands:
        command = commands.pop()
        known |= {option for param in command.params for option in param.opts}
        if isinstance(command, click.Group):
            context = click.Context(command)
            commands += [command.get_command(context, name) for name in command.list_commands(context)]
    assert OF_OTHER_COMMANDS.keys() <= known


def test_the_options_of_the_tutorial_have_the_equivalents_that_its_page_lists():
    compared = 0
    for theirs, ours in rows("tutorial.md"):
        names = re.findall(r"`(--\w+)`", theirs)
        if not theirs.startswith("`--"):
            continue
        targets = re.findall(r"`(?:--set )?([^`=]+)[^`]*`", ours)
        assert [equivalents(name, KNOWN)[0][0] for name in names] == targets
        compared += len(names)
    assert compared == 12


def test_the_names_of_mindspore_have_the_equivalents_that_the_reference_lists():
    compared = set()
    for theirs, ours in rows("reference/mindspore-names.md"):
        for name in re.findall(r"`([a-z]\w*)`", theirs):
            if targets := [target for target, _ in equivalents(name, KNOWN)]:
                assert any(target in ours for target in targets), (name, targets, ours)
                compared.add(name)
    assert {"micro_batch_num", "hidden_size", "enable_parallel_optimizer", "ffn_hidden_size"} <= compared


@pytest.mark.parametrize(("given", "hint"), [
    ("lr=0.1", "use `--set train.learning_rate=0.1`"),
    ("train.lr=0.1", "use `--set train.learning_rate=0.1`"),
    ("train.max_steps=9", "use `--set train.steps=9`"),
    ("epochs=5", "use `--set train.epochs=5`"),
    ("model.layers=6", "use `--set model.encoder_layers=6 --set model.decoder_layers=6`"),
    ("model.hidden_size=64", "use `--set model.d_model=64`"),
    ("checkpoint.save_every=5", "use `--set checkpoint.every_steps=5`"),
    ("lr_scheduler_type=Cosine", "use `--set train.schedule=cosine`"),
    ("train.schedule=Cosine", "use `--set train.schedule=cosine`"),
    ("schedule=cosine", "use `--set train.schedule=cosine`"),
    ("train.precision=bf16", "use `--set train.precision=bfloat16`"),
    ("train.precision=32", "use `--set train.precision=float32`"),
    ("bf16=true", "use `--set train.precision=bfloat16`"),
    ("fp16=False", "use `--set train.precision=float32`"),
    ("no_cuda=0", "use `--set train.device=auto`"),
    ("norm_first=false", "use `--set model.norm=post`"),
    ("share_all_embeddings=false", "use `--set model.share=none`"),
    ("fp32=false", "use `--set train.precision=VALUE`; `tlaunch explain train.precision` shows what it means"),
    ("save_best=True", "use `--set checkpoint.keep_best=true`"),
    ("load_best_model_at_end=True", "use `--set checkpoint.keep_best=true`; `tlaunch explain checkpoint.keep_best` "),
    ("enable_parallel_optimizer=0", "use `--set parallel.optimizer_shard=false`"),
    ("data.direction=en_fr", "use `--set data.source_language=en --set data.target_language=fr`"),
    ("micro_batch_num=4", "use `--micro-batches 4`"),
    ("tp=$(id)", "use `--mp '$(id)'`"),
    ("max_tokens=99", "use `--set train.batch_tokens=VALUE`; `tlaunch explain train.batch_tokens` shows what it means"),
    ("train.shedule=cosine", "did you mean train.schedule?"),
    ("train.zounds=1", "`tlaunch explain train` lists the settings of this section"),
    ("zounds=1", "list the settings of a section with `tlaunch explain SECTION`; sections: model, data, train, "),
])  # fmt: skip
def test_a_setting_of_another_tool_is_answered_with_the_one_that_is_meant(given, hint):
    with pytest.raises(UsageError) as error:
        load_settings(TransformerSettings, None, [given])
    assert error.value.hint.startswith(hint)


@pytest.mark.parametrize(("text", "hint"), [
    ("[train]\nlr = 0.1\n", "did you mean train.learning_rate?"),
    ("[data]\ndirection = 'en_fr'\n", 'use data.source_language = "en" and data.target_language = "fr"'),
    ("[train]\nprecision = 'bf16'\n", 'use train.precision = "bfloat16"'),
])  # fmt: skip
def test_a_hint_about_a_file_has_the_form_of_the_file(tmp_path, text, hint):
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_settings(TransformerSettings, str(path))
    assert error.value.hint == hint


def test_a_name_without_an_equivalent_in_the_program_is_not_answered_with_one_of_another_program():
    with pytest.raises(UsageError) as error:
        load_settings(RECIPES["quickstart"].settings, None, ["model.layers=3"])
    assert error.value.hint == "`tlaunch explain model` lists the settings of this section"
