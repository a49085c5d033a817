"""Strategies and layouts of the quickstart network: which fit, and which are refused before a process starts."""

import pytest

from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.quickstart.quickstart_recipe import QuickstartSettings, check_data, check_layout, own_layout

TUTORIAL = "recipes/quickstart/tutorial.toml"


def checked(settings, layout):
    """Check as the launcher does: the layout that the mode makes of the one that was asked for."""
    return check_layout(settings, own_layout(settings, layout))


def settings_of(*settings, config=None):
    return load_settings(QuickstartSettings, config, settings)


def test_the_tutorials_strategy_is_for_eight_devices():
    settings = settings_of(config=TUTORIAL)
    assert settings.strategies == {"matmul": ((2, 4), (4, 1))}
    assert checked(settings, Layout(dp=8)) is None
    with pytest.raises(UsageError, match="needs 8 devices, but there are 4"):
        checked(settings, Layout(dp=4))


@pytest.mark.parametrize("written", ["[[2,4],[4,1]]", "((2, 4), (4, 1))"])
def test_a_strategy_is_written_as_toml_or_as_the_tutorials_have_it(written):
    assert settings_of(f"strategies.matmul={written}").strategies == {"matmul": ((2, 4), (4, 1))}


def test_an_operators_name_may_be_quoted_as_in_toml():
    assert settings_of('strategies."fc.matmul"=[[1, 1], [2, 1]]').strategies == {"fc.matmul": ((1, 1), (2, 1))}


@pytest.mark.parametrize("section", ["strategy", "stratgies"])
def test_a_section_of_strategies_that_is_misspelt_is_suggested(section):
    with pytest.raises(UsageError) as caught:
        settings_of(f"{section}.matmul=[[1, 1], [1, 1]]")
    assert caught.value.hint == "did you mean strategies.matmul?"


@pytest.mark.parametrize("written", ["3", "[2, 4]", "[[2.0, 4], [4, 1]]", "x"])
def test_what_is_no_strategy_is_refused(written):
    with pytest.raises(UsageError, match=r"strategies\.matmul is .*, but must be one list per input"):
        settings_of(f"strategies.matmul={written}")


@pytest.mark.parametrize(("settings", "layout"), {
    "an operator that is none": (["strategies.matmull=[[1,1],[1,1]]"], Layout(dp=2)),
    "a dim that cannot be divided": (["strategies.matmul2=[[1,3],[3,1]]"], Layout(dp=3)),
    "stages": ([], Layout(pp=2)),
    "micro batches": ([], Layout(micro_batches=2)),
    "several devices that stand alone": (["parallel.mode=stand_alone"], Layout(dp=2)),
    "model parallelism outside of hybrid": ([], Layout(dp=2, mp=2)),
    "strategies in data parallel": (["parallel.mode=data_parallel", "strategies.relu=[[2,1]]"], Layout(dp=2)),
    "copies that do not divide the batch": (["parallel.mode=hybrid_parallel"], Layout(dp=3, mp=2)),
    "copies of one device that are to be cut": (
        ["parallel.mode=hybrid_parallel", "strategies.matmul=[[2,4],[4,1]]"],
        Layout(dp=8),
    ),
    "more parts than a copy has devices": (
        ["parallel.mode=hybrid_parallel", "strategies.relu=[[2,2]]"],
        Layout(dp=2, mp=2),
    ),
}.values())  # fmt: skip
def test_what_does_not_fit_is_refused(settings, layout, snapshot):
    with pytest.raises((RefusedLayoutError, UsageError)) as caught:
        checked(settings_of(*settings), layout)
    assert str(caught.value) == snapshot


def test_hybrid_takes_both_axes():
    settings = settings_of("parallel.mode=hybrid_parallel", "strategies.matmul=[[2,2],[2,1]]")
    assert checked(settings, Layout(dp=2, mp=4)) is None


def test_it_reads_no_data(tmp_path):
    with pytest.raises(TlaunchError):
        check_data(settings_of(), [tmp_path])
