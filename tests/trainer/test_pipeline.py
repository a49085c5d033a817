"""The 1F1B schedule."""

import threading
from collections import defaultdict, deque
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.trainer.parallel import pipeline as pipeline_module
from launcher.trainer.parallel.pipeline import (
    MESSAGES_ON_THEIR_WAY,
    Action,
    Links,
    Pipeline,
    forward_only,
    one_forward_one_backward,
)

DEADLOCK_S = 60


def written(schedule):
    return " ".join(f"{action.kind[0].upper()}{action.micro_batch}" for action in schedule)


@pytest.mark.parametrize(("stage", "expected"), [(0, "F0 F1 B0 F2 B1 B2"), (1, "F0 B0 F1 B1 F2 B2")])
def test_the_worked_example(stage, expected):
    """Two stages, three micro batches: the order that the module's docstring gives."""
    assert written(one_forward_one_backward(stage, 2, 3)) == expected


@st.composite
def pipelines(draw):
    stage_count = draw(st.integers(1, 8))
    return draw(st.integers(0, stage_count - 1)), stage_count, draw(st.integers(1, 12))


@given(pipelines())
def test_every_micro_batch_goes_forward_and_then_backward_once(pipeline):
    """Both kinds come in the order of the micro batches, as links without tags demand."""
    schedule = one_forward_one_backward(*pipeline)

    for kind in ("forward", "backward"):
        assert [action.micro_batch for action in schedule if action.kind == kind] == list(range(pipeline[2]))
    for index in range(pipeline[2]):
        assert schedule.index(Action("forward", index)) < schedule.index(Action("backward", index))


@given(pipelines())
def test_micro_batches_in_flight_are_bounded_by_the_stages_left(pipeline):
    """Memory grows with the depth of the pipeline, not with the number of micro batches."""
    stage, stage_count, micro_batches = pipeline
    in_flight = most = 0
    for action in one_forward_one_backward(*pipeline):
        in_flight += 1 if action.kind == "forward" else -1
        most = max(most, in_flight)

    assert most == min(micro_batches, stage_count - stage)


class Rendezvous:
    """Messages as NCCL and HCCL carry them: without tags, and a send is over only when its receive is there.

    Operations of one rank in one group run one after another, like kernels on a stream.
    """

    def __init__(self):
        self.queues, self.changed, self.most_sends = defaultdict(deque), threading.Condition(), 0

    def of(self, rank):
        """What torch.distributed is to one rank."""
        return SimpleNamespace(
            isend=lambda tensor, to, group: self.post(rank, group, "send", to, tensor),
            irecv=lambda tensor, source, group: self.post(rank, group, "receive", source, tensor),
        )

    def post(self, rank, group, kind, peer, tensor):
        operation = SimpleNamespace(kind=kind, peer=peer, tensor=tensor, over=threading.Event())
        with self.changed:
            queue = self.queues[rank, group]
            queue.append(operation)
            self.most_sends = max(self.most_sends, sum(waiting.kind == "send" for waiting in queue))
            while self.match():
                pass
        return SimpleNamespace(wait=lambda: operation.over.wait(DEADLOCK_S) or pytest.fail("deadlock"))

    def match(self):
        for (rank, group), queue in list(self.queues.items()):
            if queue and queue[0].kind == "send":
                peer_queue = self.queues[queue[0].peer, group]
                if peer_queue and peer_queue[0].kind == "receive" and peer_queue[0].peer == rank:
                    send, receive = queue.popleft(), peer_queue.popleft()
                    assert send.tensor.shape == receive.tensor.shape
                    receive.tensor.copy_(send.tensor)
                    send.over.set()
                    receive.over.set()
                    return True
        return False


def run_stages(stage_count, micro_batches, transport, *, backward=True):
    """Run the engine on every stage, each in a thread; the losses of the last one."""
    losses, threads = [], []
    distributed = threading.local()  # what each thread takes for torch.distributed

    def stage(index):
        distributed.__dict__.update(vars(transport.of(index)))
        links = Links(
            previous=index - 1 if index else None,
            following=index + 1 if index < stage_count - 1 else None,
            forward_group="forward",
            backward_group="backward",
        )
        weight = torch.ones((), requires_grad=True)

        def compute(micro_batch, received):
            output = (torch.full((micro_batch + 1,), float(micro_batch)) if received is None else received) * weight
            return output.sum() if index == stage_count - 1 else output

        engine = Pipeline(links, compute, lambda index: (index + 1,), device=torch.device("cpu"), dtype=torch.float32)
        make = one_forward_one_backward(index, stage_count, micro_batches)
        found = engine.run(make if backward else forward_only(micro_batches))
        if index == stage_count - 1:
            losses.extend(float(loss) for loss in found)

    with mock.patch.object(pipeline_module, "dist", distributed):
        threads = [threading.Thread(target=stage, args=(index,)) for index in range(stage_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return losses


@pytest.mark.parametrize("backward", [True, False], ids=["1F1B", "validation"])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("stage_count", [2, 3, 4, 7])
def test_the_engine_never_deadlocks_where_sends_wait_for_their_receives(stage_count, micro_batches, backward):
    """Without tags and without buffers, in any depth, all messages arrive, and few are on their way at once."""
    transport = Rendezvous()
    losses = run_stages(stage_count, micro_batches, transport, backward=backward)

    assert losses == [float(index * (index + 1)) for index in range(micro_batches)]
    assert not any(transport.queues.values())
    assert transport.most_sends <= MESSAGES_ON_THEIR_WAY


def test_validation_only_goes_forward():
    assert written(forward_only(3)) == "F0 F1 F2"
