"""Recipes from defaults, a file, and --set."""

import importlib.util
import json

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.records import Layout
from launcher.core.resources import data_dir
from launcher.program.preload_scan import trainer_modules
from launcher.recipes.catalog import RECIPES, recipe_named
from launcher.recipes.load import find_config, load_settings, named_settings
from launcher.recipes.settings import all_settings
from launcher.recipes.train import TrainConfig
from launcher.recipes.transformer.transformer_checks import check_layout
from launcher.recipes.transformer.transformer_settings import TransformerSettings


@pytest.fixture(name="config")
def _config(tmp_path):
    def write(text):
        path = tmp_path / "my.toml"
        path.write_text(text)
        return str(path)

    return write


def test_without_a_file_the_defaults_hold():
    assert load_settings(TransformerSettings, None) == TransformerSettings()


def test_a_setting_overrides_the_file_which_overrides_the_default(config):
    recipe = load_settings(
        TransformerSettings, config("[model]\nheads = 4\nd_model = 64\n"), ["model.heads=2", "data.source_language=en"]
    )
    assert (recipe.model.heads, recipe.model.d_model, recipe.data.languages) == (2, 64, ("en", ""))


def test_switches_and_lists_are_settings_too(config):
    parallel = load_settings(
        TransformerSettings, config("[parallel]\nstages = [3, 1]\n"), ["parallel.recompute=true"]
    ).parallel
    assert (parallel.stages, parallel.recompute) == ((3, 1), True)


def test_a_setting_is_known_by_its_other_name():
    """What MindSpore calls gradient_aggregation_group; the later one wins, by whichever name."""
    names = ["parallel.gradient_groups=2", "parallel.gradient_aggregation_group=4"]
    assert load_settings(TransformerSettings, None, names).parallel.gradient_groups == 4
    assert load_settings(TransformerSettings, None, names[::-1]).parallel.gradient_groups == 2


def test_the_tutorial_is_found_by_its_name_from_any_directory():
    model = load_settings(TransformerSettings, "recipes/transformer/tutorial.toml").model
    assert (model.vocabulary_size, model.d_model, model.heads) == (20000, 128, 8)


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2), Layout(mp=4), Layout(pp=9)], ids=str)
def test_the_recipe_for_multi30k_fits_layouts(layout):
    settings = load_settings(TransformerSettings, "recipes/transformer/multi30k.toml")
    assert check_layout(settings, layout) is None
    assert (settings.model.share, settings.train.batch_tokens) == ("all", 4096)


def test_the_template_is_found_by_its_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("templates/transformer.toml") == data_dir("templates") / "transformer.toml"


def test_a_packaged_file_is_found_by_its_last_part(tmp_path, monkeypatch):
    """The one of the program that runs, unless the working directory has a file of this name."""
    monkeypatch.chdir(tmp_path)
    for name, recipe in RECIPES.items():
        assert recipe.load("tutorial.toml", []) == recipe.load(f"recipes/{name}/tutorial.toml", [])
    (tmp_path / "tutorial.toml").write_text("[train]\nseed = 77\n")
    assert RECIPES["quickstart"].load("tutorial.toml", []).train.seed == 77


def test_an_unknown_file_lists_the_packaged_ones():
    with pytest.raises(UnreadableError) as error:
        load_settings(TransformerSettings, "nowhere.toml")
    assert "recipes/transformer/tutorial.toml" in error.value.hint


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("[model]\nd_modl = 3\n", "my.toml:2: unknown setting model.d_modl", "did you mean model.d_model?"),
    ("[train]\ndropout = 0.1\n", "my.toml:2: unknown setting train.dropout", "did you mean model.dropout?"),
    ("[train]\ndroput = 0.1\n", "my.toml:2: unknown setting train.droput", "did you mean model.dropout?"),
    ("dropout = 0.1\n", "my.toml:1: unknown setting dropout", "did you mean model.dropout?"),
    ("[train]\nzounds = 1\n", "my.toml:2: unknown setting train.zounds", "`tlaunch explain train` lists"),
    ("[train]\n\nseed = 1\nsteps = -1\n", "my.toml:4: train.steps is -1, which is below 0", "train.steps: "),
    ("[model]\nheads = '8'\n", 'my.toml:2: model.heads is "8", but must be an integer', "the default is"),
    ("[model]\nheads = true\n", "my.toml:2: model.heads is true, but must be an integer", "the default is"),
    ("[parallel]\nrecompute = 1\n", "my.toml:2: parallel.recompute is 1, but must be true or false", "the default is"),
    ("[parallel]\nstages = [1, 'a']\n", 'stages is [1, "a"], but must be a list of integers', "the default is"),
    ("[parallel]\nstages = [3, -1]\n", "my.toml:2: parallel.stages is [3, -1], which is below 0 in -1", "layers"),
    ("model.dropout = 1.0\n", "my.toml:1: model.dropout is 1.0, which is not below 1", "model.dropout: "),
    ("[train]\nlearning_rate = nan\n", "my.toml:2: train.learning_rate is nan, which is not finite", "learning rate"),
    ("[train]\nprecision = 'half'\n", 'my.toml:2: train.precision is "half", which is not one of', "bfloat16"),
])  # fmt: skip
def test_a_wrong_value_is_named_with_its_line(config, text, message, hint):
    with pytest.raises(UsageError) as error:
        load_settings(TransformerSettings, config(text))
    assert message in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_whole_number_has_an_upper_bound(recipe):
    for name, field in all_settings(recipe.settings).items():
        if type(field.default) not in {int, tuple}:
            continue
        most = field.metadata["bounds"].maximum
        value = f"[{most + 1}]" if type(field.default) is tuple else most + 1
        load_settings(recipe.settings, None, [f"{name}={value}".replace(str(most + 1), str(most))])
        with pytest.raises(UsageError, match=f"above {most:,}"):
            load_settings(recipe.settings, None, [f"{name}={value}"])


@pytest.mark.parametrize("value", ["1" + 400 * "0", "-1" + 400 * "0"])
def test_a_whole_number_that_no_float_holds_is_refused(value):
    with pytest.raises(UsageError, match="which is not finite"):
        load_settings(TransformerSettings, None, [f"train.learning_rate={value}"])


def test_broken_toml_is_a_usage_error(config):
    with pytest.raises(UsageError, match=r"invalid TOML: .*line 1"):
        load_settings(TransformerSettings, config("[model\n"))


@pytest.mark.parametrize("text", ["train.seed", "=3"])
def test_a_setting_needs_a_key_and_a_value(text):
    with pytest.raises(UsageError, match="expected the form KEY=VALUE"):
        load_settings(TransformerSettings, None, [text])


def test_settings_are_named_by_a_file_or_the_command_line(config):
    path = config("train.seed = 1\n[model]\nd_model = 12\n")
    assert named_settings(path, ["train.precision=float32"]) == {"train.seed", "model.d_model", "train.precision"}
    assert named_settings(None) == frozenset()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_template_states_every_default_and_what_it_means(recipe):
    template = data_dir("templates") / f"{recipe.name}.toml"
    stated = [line for line in template.read_text(encoding="utf-8").splitlines() if line and line[0] not in "#["]
    expected = []
    for name, field in all_settings(recipe.settings).items():
        bounds = field.metadata["bounds"]
        assert bounds.help
        choices = f" ({' | '.join(bounds.choices)})" if bounds.choices else ""
        expected.append(f"{name.partition('.')[2]} = {json.dumps(field.default)}  # {bounds.help}{choices}")
    assert stated == expected
    assert recipe.load(str(template), []) == recipe.settings()


def test_a_file_that_windows_wrote_is_read(tmp_path):
    config = tmp_path / "settings.toml"
    config.write_bytes(b"\xef\xbb\xbf[train]\r\nsteps = 7\r\n")
    assert load_settings(TransformerSettings, str(config)).train.steps == 7


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_has_all_that_the_launcher_asks_of_it(recipe):
    settings = recipe.load(f"templates/{recipe.name}.toml", [])
    assert settings == recipe.settings()
    assert {f"train.{name}" for name in TrainConfig.__annotations__} <= all_settings(recipe.settings).keys()
    assert (data_dir("templates") / f"{recipe.name}.toml").is_file()
    assert recipe.program in trainer_modules(["--recipe", recipe.name])
    assert importlib.util.find_spec(recipe.program) is not None


def test_an_unknown_recipe_names_a_similar_one():
    with pytest.raises(UsageError, match="--recipe transfomer") as error:
        recipe_named("transfomer")
    assert error.value.hint == "did you mean transformer?"
    assert recipe_named(None).program in trainer_modules([])
