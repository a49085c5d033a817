"""What is recorded of a training step is what was computed and communicated."""

import json
from collections import Counter

import pytest
import torch

from launcher.sharding.report_set import equal_ranks, read_all
from launcher.sharding.strategy_report import read_report
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.plan import gives_parts
from launcher.trainer.programs.strategy_recorder import RecordedModel
from launcher.trainer.telemetry import recording, watch

from .conftest import run_program
from .transformers import session_of

BESIDE = {"optimizer", "pipeline", "loss"}  # what is no operator


@pytest.fixture(scope="module", name="recorded")
def _recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recorded")
    run_program("recorded.py", directory)
    return directory


def sums(report, **chosen):
    """The number and the bytes of the collectives of each kind, of those with these attributes."""
    found = Counter()
    for each in report.collectives:
        if all(getattr(each, name) == value for name, value in chosen.items()):
            found[each.kind, "count"] += each.count
            found[each.kind, "bytes"] += each.count * each.bytes
    return dict(found)


def output_bytes(report, name):
    [operator] = [operator for operator in report.operators if operator.name == name]
    return torch.Size(operator.output.size).numel() * 4


pytestmark = pytest.mark.timeout(900)


@pytest.mark.distributed
@pytest.mark.parametrize("layout", ["dp2-mp2", "dp2-pp2", "dp2-pp2-chunks", "mp2-pp2"])
def test_what_is_recorded_is_what_the_backend_was_asked_for(recorded, layout):
    """Kinds, numbers and bytes, on every rank, with recompute and groups of gradients."""
    for report in read_all(recorded / layout):
        counted = json.loads((recorded / layout / f"counts{report.rank}.json").read_text())
        assert sums(report) == {(kind, what): number for kind, what, number in counted}
        known = {operator.name for operator in report.operators}
        assert {each.operator for each in report.collectives} <= known | BESIDE
        assert report.step == 2


@pytest.mark.distributed
@pytest.mark.parametrize("layout", ["dp2-mp2", "dp2-mp2-shared"])
def test_model_parallelism_sums_twice_for_an_encoder_layer_and_three_times_for_a_decoder_layer(recorded, layout):
    """In forward and in backward; of B T d numbers each, and once for what all decoder layers attend to."""
    for report in read_all(recorded / layout):
        group = (0, 1) if report.rank < 2 else (2, 3)
        expected = {}
        for layer in ("encoder.0", "encoder.1", "decoder.0", "decoder.1"):
            size = output_bytes(report, f"{layer}.add")
            for name in (
                "attention.output",
                *["cross_attention.output"] * layer.startswith("decoder"),
                "feed_forward.contract",
            ):
                expected[f"{layer}.{name}", "forward"] = (1, size)
                expected[f"{layer}.{name.partition('.')[0]}.enter", "backward"] = (1, size)
        expected["memory.enter", "backward"] = (1, output_bytes(report, "memory"))
        for name in ("source_embedding.word", "target_embedding.word"):
            expected[name, "forward"] = (1, output_bytes(report, name))
        sums_found = {
            (each.operator, each.phase): (each.count, each.bytes)
            for each in report.collectives
            if each.kind == "all_reduce" and each.operator not in {*BESIDE, "head"}
        }
        assert sums_found == expected
        assert {each.group for each in report.collectives if each.operator not in BESIDE} == {group}
        batch, time = report.operators[0].inputs[0].size
        assert output_bytes(report, "encoder.0.add") == batch * time * 32 * 4


@pytest.mark.distributed
def test_the_optimizers_part(recorded):
    """Gradients once over the data-parallel ranks, in groups or not, and weights back; by shared memory these need no message."""
    for layout in ("dp2-mp2", "dp2-mp2-shared"):
        for report in read_all(recorded / layout):
            facts = json.loads((recorded / layout / f"facts{report.rank}.json").read_text())
            flat, found = facts["flat_bytes"], sums(report, phase="optimizer", operator="optimizer")
            norm = {("all_reduce", "count"): 2, ("all_reduce", "bytes"): 2 * 2 * 4}  # over mp and dp, with a vote
            if layout == "dp2-mp2-shared":
                gradients = {("reduce_scatter", "count"): 1, ("reduce_scatter", "bytes"): flat}
            else:
                gradients = {
                    ("all_to_all", "count"): 3, ("all_to_all", "bytes"): flat,
                    ("all_gather", "count"): 3, ("all_gather", "bytes"): flat,
                }  # fmt: skip
            assert found == {**norm, **gradients}


@pytest.mark.distributed
def test_messages_of_the_pipeline(recorded):
    """Both streams of each micro batch forward, their gradients backward; what one stage sends the next one receives."""
    reports = read_all(recorded / "dp2-pp2")
    for report in reports[:2]:
        after = reports[report.rank + 2]
        for phase, sender, receiver in (("forward", report, after), ("backward", after, report)):
            sent = Counter({(m.group, m.bytes): m.count for m in sender.collectives if m.kind == "send"})
            got = Counter({(m.group, m.bytes): m.count for m in receiver.collectives if m.kind == "receive"})
            assert sent == got
            assert sent.total() == 3
            assert {m.phase for m in sender.collectives if m.kind == "send"} == {phase}
            assert {group for group, _ in sent} == {(sender.rank, receiver.rank)}
        first = next(m.bytes for m in report.collectives if m.kind == "send")
        streams = [output_bytes(report, f"{name}_embedding.word") for name in ("source", "target")]
        assert first == sum(streams)
    assert {operator.stage for report in reports[2:] for operator in report.operators} == {1}
    assert {operator.calls for report in reports for operator in report.operators} == {3}
    assert not [
        m for report in reports for m in report.collectives if m.kind == "all_reduce" and m.phase != "optimizer"
    ]


@pytest.mark.distributed
def test_messages_about_a_shared_matrix(recorded):
    """Its gradient to the first stage, and the weight back, of the same model-parallel part."""
    for report in read_all(recorded / "mp2-pp2"):
        found = [
            (m.kind, m.group, m.what) for m in report.collectives if m.phase == "optimizer" and m.kind != "all_reduce"
        ]
        first, last = report.rank % 2, report.rank % 2 + 2
        kinds = ("receive", "send") if report.rank == first else ("send", "receive")
        assert found == [
            (kinds[0], (last, first), "gradient of the shared weight"),
            (kinds[1], (first, last), "shared weight"),
        ]
        tables = {each.name for operator in report.operators for each in operator.inputs if "shared" in each.name}
        assert {name for name in tables if "weight" in name} == {"shared_embedding.weight"}


@pytest.mark.distributed
def test_operators_of_all_chunks_are_recorded(recorded):
    """A stage of two chunks has one layer in each of them, in the order in which a micro batch passes them."""
    for rank, layers in ((0, ["encoder.0", "decoder.0"]), (3, ["encoder.1", "decoder.1"])):
        names = [operator.name for operator in read_report(recorded / "dp2-pp2-chunks" / f"rank{rank}.json").operators]
        assert list(dict.fromkeys(".".join(name.split(".")[:2]) for name in names if "coder." in name)) == layers


@pytest.mark.distributed
def test_layouts_of_the_model(recorded):
    """Parameters as they are placed, features and heads by model parallelism, rows of the batch by data parallelism."""
    report = read_report(recorded / "dp2-mp2" / "rank1.json")
    found = {operator.name: operator for operator in report.operators}
    assert found["encoder.0.attention.query"].strategy == ((2, 1, 1), (2, 1), (2,))
    weight = found["encoder.0.attention.query"].inputs[1]
    assert (weight.shape, weight.start, weight.size, weight.by) == ((32, 32), (16, 0), (16, 32), ("mp", ""))
    assert found["encoder.0.attention.query"].output.cuts == (2, 1, 2)
    attention = found["decoder.1.cross_attention.sdpa"]
    assert attention.strategy == ((2, 2, 1, 1), (2, 2, 1, 1), (2, 2, 1, 1), (2, 1, 1, 1))
    assert attention.output.by == ("dp", "mp", "", "")
    assert found["encoder.1.feed_forward.contract"].strategy == ((2, 1, 2), (1, 2), (1,))
    assert found["head"].inputs[2].cuts == (2, 1)
    assert [(each.name, each.is_parameter) for each in found["decoder.0.add_2"].inputs] == [
        ("decoder.0.add_1", False),
        ("decoder.0.feed_forward_dropout", False),
    ]
    edges = {(edge.source, edge.target) for edge in report.edges}
    assert {("source", "source_embedding.word"), ("memory", "decoder.1.cross_attention.key")} <= edges
    assert ("decoder.1.add_2", "decoder_norm") in edges
    assert [group.ranks for group in equal_ranks(read_all(recorded / "dp2-mp2"))] == [(0, 1, 2, 3)]


@pytest.mark.distributed
def test_vocabulary_rows_that_ranks_do_not_divide(recorded):
    for rank, (start, size) in {0: (0, 33), 1: (33, 34)}.items():
        report = read_report(recorded / "dp2-mp2" / f"rank{rank}.json")
        weight = report.operators[0].inputs[1]
        assert (weight.shape, weight.start, weight.size) == ((67, 32), (start, 0), (size, 32))


def new_session():
    sizes = ["model.vocabulary_size=100", "model.d_model=32", "model.feed_forward_dim=32", "model.dropout=0.1"]
    return session_of(*sizes, "parallel.recompute=true", micro_batches=2)


def recorder_of(session, path):
    recorded = RecordedModel("transformer", session.model, session.placements, gives_parts(session.model))
    return recorded.recorder(path, session.world, attempt=0)


def examples(count):
    return [Example([*range(4, 6 + one), END], [*range(5, 7 + one), END]) for one in range(count)]


def test_recording_changes_nothing(tmp_path):
    """Losses and weights bit by bit; nothing of it is left at the model; one process communicates nothing."""
    plain, watched = new_session(), new_session()
    recorder = recorder_of(watched, tmp_path / "strategy" / "rank0.json")
    told = []
    for step in range(1, 4):
        with recorder.step(step, is_last=step == 3):
            loss = watched.train_step(examples(6), 1e-3, step=step).loss
        told.append(recorder.first_line())
        assert loss == plain.train_step(examples(6), 1e-3, step=step).loss
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert told == ["", f"strategy: {tmp_path / 'strategy' / 'rank0.json'}", ""]
    assert recording.active is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.model.modules())
    report = read_report(tmp_path / "strategy" / "rank0.json")
    assert (report.step, report.collectives, {each.calls for each in report.operators}) == (2, (), {2})


def test_a_training_of_one_step_is_recorded_in_that(tmp_path):
    """A report that cannot be written ends no training."""
    (tmp_path / "strategy").write_text("a file")
    for path, told in ((tmp_path / "rank0.json", "strategy: "), (tmp_path / "strategy" / "rank0.json", "no strategy")):
        session = new_session()
        recorder = recorder_of(session, path)
        with recorder.step(7, is_last=True):
            session.train_step(examples(2), 1e-3, step=7)
        assert recorder.first_line().startswith(told)
    assert read_report(tmp_path / "rank0.json").step == 7


def test_a_module_that_is_called_again_is_an_operator_again():
    """As torch.fx counts them; one that fails leaves nothing behind."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = torch.nn.ReLU()
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x, fails=False):
            x = self.relu(self.fc(self.relu(x)).view(-1)) * 2
            return self.fc(x) if fails else x.softmax(0)

    network, recorder = Network(), recording.Recorder(0)
    with watch.watching(network, recorder):
        x = torch.ones(1, 2)
        recorder.graph.name_tensors({"x": x})
        network(x)
        with pytest.raises(RuntimeError):
            network(torch.ones(3, 2), fails=True)
        assert recorder.operator == ""
    found = [
        (each.name, each.kind, [taken.name for taken in each.inputs]) for each in recorder.graph.operators.values()
    ]
    assert found == [
        ("relu", "relu", ["x"]),
        ("fc", "linear", ["relu", "fc.weight", "fc.bias"]),
        ("relu_1", "relu", ["fc"]),
        ("mul", "mul", ["relu_1"]),
        ("softmax", "softmax", ["mul"]),
    ]
