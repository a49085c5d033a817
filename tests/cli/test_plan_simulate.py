"""`tlaunch plan simulate`, and runs that --device-memory refuses."""

import json
from dataclasses import replace

import pytest

from launcher.cli.commands.plan.simulate import lines_of
from launcher.cli.run_options import RunOptions
from launcher.cli.training import simulated
from launcher.core.errors import UsageError
from launcher.core.records import Layout
from launcher.sharding.simulated_step import CollectiveSum, MemoryPeak, SimulatedRank, SimulatedStep

MIB = 1 << 20
PEAK = MemoryPeak(MIB, 2 * MIB, 3 * MIB, 4 * MIB, 512, phase="backward", operator="", function="mm")
FIRST = SimulatedRank(
    0, (0, 1), 0, PEAK, 10**9, 2 * 10**9, (CollectiveSum("all_reduce", "mp", (0, 1), "output", 3, 3 * MIB),)
)
SECOND = SimulatedRank(
    2,
    (2, 3),
    1,
    replace(PEAK, activations=9 * MIB, phase="forward", operator="head"),
    10**9,
    10**9,
    (CollectiveSum("receive", "pp", (0, 2), "activations", 2, MIB),),
)
STEP = SimulatedStep("transformer", "dp=1 mp=2 pp=2", 2, "npu", "2.13.0", "nothing", 32, 16, 16, (FIRST, SECOND))


def test_what_it_says(snapshot):
    assert "\n".join(lines_of(STEP, 120)) == snapshot


@pytest.mark.parametrize(
    ("limit", "larger", "remedy"),
    [(10 * MIB, "activations", "recompute"), (10 * MIB, "moments", "--dp"), (10 * MIB, "weights", "--mp")],
)
def test_a_layout_that_does_not_fit_is_refused(monkeypatch, limit, larger, remedy):
    """The message names the fullest rank, its need and the limit; the hint names its parts and what reduces the largest."""
    rank = replace(SECOND, peak=replace(PEAK, **{larger: 20 * MIB}))
    monkeypatch.setattr(simulated, "simulated_step", lambda *_: replace(STEP, ranks=(FIRST, rank)))
    with pytest.raises(UsageError) as raised:
        simulated.check_device_memory(RunOptions(device_memory=limit), Layout(1, 2, 2, 2))
    assert "rank 2 (stage 1)" in raised.value.message
    assert "10.0 MiB" in raised.value.message
    assert f"20.0 MiB of {larger}" in raised.value.hint
    assert remedy in raised.value.hint


def test_a_layout_that_fits_is_not_refused(monkeypatch):
    monkeypatch.setattr(simulated, "simulated_step", lambda *_: STEP)
    simulated.check_device_memory(RunOptions(device_memory=16 * MIB), Layout(1, 2, 2, 2))


def test_it_simulates_in_a_process_of_its_own(launcher):
    layout = ("--devices", 4, "--mp", 2, "--pp", 2, "--micro-batches", 2)
    done = launcher.call("plan", "simulate", *layout, "--device", "npu", "--rank", 3, "--json", code=0)
    step = json.loads(done.stdout)
    [rank] = step["ranks"]
    assert (step["device"], rank["rank"], rank["same"], rank["stage"]) == ("npu", 3, [2, 3], 1)
    assert {(each["axis"], each["kind"]) for each in rank["collectives"]} == {
        ("pp", "receive"), ("pp", "send"), ("pp", "all_reduce"), ("mp", "all_reduce"), ("mp", "all_gather"),
    }  # fmt: skip
    refused = launcher.call("run", *layout, "--device-memory", "1M", code=2)
    assert "needs" in refused.stderr
    assert "--device-memory 1.0 MiB" in refused.stderr
    assert not launcher.runs.exists()


def test_wrong_usage(launcher):
    for words in (
        ("plan", "simulate", "--devices", 2, "--rank", 2),
        ("plan", "simulate", "--recipe", "quickstart"),
        ("run", "--device-memory", "1G", "--", "true"),
        ("run", "--device-memory", 24),
    ):
        launcher.call(*words, code=2)
    launcher.call("plan", "simulate", "--devices", 3, "--mp", 2, code=3)
