"""Times of collectives and stages, and the memory of a rank, against sums made by hand."""

from dataclasses import replace

import pytest

from launcher.plan.collective_time import all_reduce_s
from launcher.plan.packaged_profiles import A100_80, H100, PROFILES, profile_like, profile_named
from launcher.plan.peak_memory import fullest_rank, rank_memory
from launcher.plan.prediction import bound_s, predict
from launcher.plan.stage_time import stage_times

from .models import DECODER_7B, GPT_175B, SMALL, TRANSLATOR, configured

NUMBERS = replace(
    A100_80.numbers, link_latency_s=1e-5, link_bytes_per_s=100e9, network_latency_s=3e-5, network_bytes_per_s=80e9
)


def test_a_group_within_a_server_uses_its_links():
    moved = 2 * 7 / 8 * 1e9
    assert all_reduce_s(8, 1e9, stride=1, per_server=8, numbers=NUMBERS) == pytest.approx(3e-5 + moved / 100e9)
    assert all_reduce_s(1, 1e9, stride=1, per_server=8, numbers=NUMBERS) == 0


def test_a_group_over_servers_shares_their_network():
    """Two of a dp group's 16 ranks share a server if mp is 4: a quarter of the network is theirs."""
    found = all_reduce_s(16, 1e9, stride=4, per_server=8, numbers=NUMBERS)
    assert found == pytest.approx(1e-5 * 1 + 3e-5 * 3 + 2 * 15 / 16 * 1e9 / 20e9)
    alone = all_reduce_s(16, 1e9, stride=16, per_server=8, numbers=NUMBERS)
    assert alone == pytest.approx(3e-5 * 4 + 2 * 15 / 16 * 1e9 / 10e9)


def test_small_layers_wait_for_the_host():
    """Halving the work of a layer that the host cannot dispatch fast enough changes nothing."""
    slow_host = replace(A100_80, numbers=replace(A100_80.numbers, dispatch_s=0.1))
    two, one = (stage_times(SMALL, configured(SMALL, micro_batch=size), slow_host) for size in (2, 1))
    assert two.forward[0].total == pytest.approx(one.forward[0].total, rel=0.01)
    assert one.forward[0].dispatch > 0.9 * one.forward[0].total


def test_recompute_adds_the_layers_forward_pass():
    quiet = replace(A100_80, numbers=replace(A100_80.numbers, dispatch_s=1e-9, micro_batch_s=1e-9, head_factor=1e-9))
    none, full = (stage_times(GPT_175B, configured(GPT_175B, mp=8, recompute=kind), quiet) for kind in ("none", "full"))
    assert full.backward[0].total - none.backward[0].total == pytest.approx(none.forward[0].total, rel=0.01)
    assert full.backward[0].mp == pytest.approx(2 * none.backward[0].mp)


def test_parts_of_a_step_add_up():
    for model, configuration in (
        (GPT_175B, configured(GPT_175B, dp=2, mp=8, pp=8, micro_batches=16, schedule="interleaved")),
        (TRANSLATOR, configured(TRANSLATOR, dp=2, mp=2, pp=2, micro_batches=4, micro_batch=8)),
    ):
        found = predict(model, configuration, A100_80)
        assert sum(vars(found.parts).values()) == pytest.approx(found.step_s)
        assert bound_s(model, configuration, A100_80) <= found.step_s * (1 + 1e-9)
        assert found.tokens_per_s == pytest.approx(configuration.global_batch * model.tokens / found.step_s)


def test_messages_of_the_decoder_carry_the_encoders_output():
    """Also for a model that is equal to one seen before: layers of equal models are shared."""
    configuration = configured(TRANSLATOR, pp=4, micro_batch=32)
    expected = stage_times(TRANSLATOR, configuration, A100_80)
    first, *_, third, _ = expected.forward
    latency = A100_80.numbers.message_latency_s
    assert third.messages - latency == pytest.approx(2 * (first.messages - latency))
    assert stage_times(replace(TRANSLATOR), configuration, A100_80) == expected


def test_memory_of_a_stage_by_hand():
    """GPT-175B, mp 8, pp 8, dp 4: 12 layers on stage 0, 8 micro batches in flight, full recompute."""
    configuration = configured(GPT_175B, dp=4, mp=8, pp=8, micro_batches=32, recompute="full", optimizer_shard=True)
    device = replace(A100_80, numbers=replace(A100_80.numbers, kept_factor=1.0, base_bytes=1e9))
    found = rank_memory(GPT_175B, configuration, device, 0)
    h, s = 12288, 2048
    parameters = (12 * 12 * h * h + 51200 * h) / 8
    assert found.weights == 2 * parameters
    assert found.gradients == 4 * parameters
    assert found.optimizer == pytest.approx(12 * parameters / 4)
    in_work = s * (10 * h + 24 * h / 8) + 5 * 96 * s * s / 8
    assert found.activations == pytest.approx(12 * 8 * 2 * s * h + in_work)
    assert found.logits == 0
    assert rank_memory(GPT_175B, configuration, device, 7).logits == pytest.approx(10 * s * 51200 / 8)
    assert fullest_rank(GPT_175B, configuration, device) == found


def test_flash_attention_and_recompute_keep_less():
    kept = [
        fullest_rank(DECODER_7B, configured(DECODER_7B, mp=8, micro_batch=2, **settings), H100).activations
        for settings in ({}, {"recompute": "selective"}, {"flash_attention": True}, {"recompute": "full"})
    ]
    assert kept[0] > kept[1] == kept[2] > kept[3]


def test_packaged_profiles_are_found_by_their_names():
    for profile in PROFILES:
        assert profile_named(profile.name.lower().replace(" ", "-")) is profile
        assert profile.sources["peak_flops_per_s"]
        assert profile.numbers.flops_per_s < profile.peak_flops_per_s
    assert profile_like("A100 (DGX-A100)") is A100_80
    assert profile_like("Ascend 910B3") is profile_named("Ascend 910B")
    assert profile_like("V100 (DGX-2)") is None
