"""What is searched, chosen and said."""

import time
from dataclasses import replace

import pytest

from launcher.plan.explanation import best_changes, class_reason
from launcher.plan.packaged_profiles import A100_80, H100
from launcher.plan.search import Wanted, memory_limit, search

from .models import DECODER_7B, GPT_175B, SMALL, TRANSLATOR


def chosen(result):
    layout = result.best[0].configuration.layout
    return layout.dp, layout.mp, layout.pp


def reasons(result, device):
    first = result.best[0] if result.best else None
    return {(each.mp, each.pp): class_reason(each, first, device) for each in result.classes}


def test_a_small_model_is_copied_and_a_large_one_divided():
    assert chosen(search(SMALL, A100_80, Wanted(8, 64))) == (8, 1, 1)
    _, mp, pp = chosen(search(GPT_175B, A100_80, Wanted(128, 256)))
    assert mp * pp >= 16


def test_less_memory_divides_the_model_and_says_so():
    small = replace(A100_80, memory_bytes=8e9)
    result = search(SMALL, small, Wanted(8, 64, recompute="none"))
    assert chosen(result) != (8, 1, 1)
    assert all(each.memory_bytes <= memory_limit(small) for each in result.best)
    assert "GB of 8.0 GB or more on stage 0" in reasons(result, small)[1, 1]


def test_a_slow_link_moves_mp_out_of_the_choice():
    """GPT-175B needs mp or pp; a link within the server that is 50 times slower makes mp lose, and is named."""
    slow = replace(A100_80, numbers=replace(A100_80.numbers, link_bytes_per_s=A100_80.numbers.link_bytes_per_s / 50))
    wanted = Wanted(128, 256)
    before, after = search(GPT_175B, A100_80, wanted), search(GPT_175B, slow, wanted)
    assert chosen(after)[1] < chosen(before)[1]
    assert "all-reduces of mp" in reasons(after, slow)[8, 4]
    assert best_changes(GPT_175B, slow, after)[0].gain > 0


def test_every_class_has_a_prediction_or_a_reason():
    result = search(DECODER_7B, A100_80, Wanted(96, 960))
    found = reasons(result, A100_80)
    assert found[3, 1] == "32 heads are not divisible by mp=3"
    assert found[1, 48] == "pp=48 is more than 32 layers"
    without = [pair for pair, reason in found.items() if not reason]
    best = result.best[0].configuration.layout
    assert without == [(best.mp, best.pp)]
    assert "not divisible by dp=32" in reasons(search(SMALL, A100_80, Wanted(32, 48)), A100_80)[1, 1]


def test_the_search_finds_what_simulating_all_would_find(monkeypatch):
    """The bounds drop no layout that is faster than the best five."""
    wanted = Wanted(16, 64)
    for model in (SMALL, TRANSLATOR):
        result = search(model, A100_80, wanted)
        monkeypatch.setattr("launcher.plan.search._bound_s", lambda *_: 0.0)
        everything = search(model, A100_80, wanted)
        monkeypatch.undo()
        assert everything.simulated > result.simulated
        assert [each.step_s for each in result.best] == [each.step_s for each in everything.best]


def test_what_is_fixed_stays():
    result = search(DECODER_7B, H100, Wanted(64, 512, mp=4, micro_batch=2, schedule="1f1b", recompute="full"))
    for each in result.best:
        assert each.configuration.layout.mp == 4
        assert each.configuration.micro_batch == 2
        assert each.configuration.software.schedule == "1f1b"
        assert each.configuration.software.recompute == "full"


def test_the_same_numbers_give_the_same_answer():
    first, second = (search(DECODER_7B, H100, Wanted(64, 512)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("model", "devices", "batch", "most_s"),
    [(DECODER_7B, 8, 256, 1.0), (GPT_175B, 1024, 1536, 10.0), (GPT_175B, 16384, 16384, 60.0)],
)
def test_processor_time_of_a_search(model, devices, batch, most_s):
    begun = time.process_time()
    result = search(model, A100_80, Wanted(devices, batch))
    best_changes(model, A100_80, result)
    assert time.process_time() - begun < most_s
