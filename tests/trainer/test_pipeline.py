"""The engine that runs the schedules of a pipeline, each stage in a thread."""

import threading
from collections import defaultdict, deque
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from launcher.mesh.schedules import GPIPE, INTERLEAVED, ONE_FORWARD_ONE_BACKWARD, forward_only, schedule_of
from launcher.trainer.parallel import pipeline as pipeline_module
from launcher.trainer.parallel.pipeline import MESSAGES_ON_THEIR_WAY, Link, Links, Pipeline

DEADLOCK_S = 60


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


def links_of(index, stage_count, chunks):
    """The neighbours of a stage; each direction of each link has a group."""
    around = Link(stage_count - 1 - index, "around, forward", "around, backward")
    return Links(
        previous=Link(index - 1, "forward", "backward") if index else None,
        following=Link(index + 1, "forward", "backward") if index < stage_count - 1 else None,
        chunks=chunks,
        around=around if chunks > 1 and index in {0, stage_count - 1} else None,
    )


def run_stages(stage_count, transport, schedule, *, chunks=1):
    """Run the engine on every stage, each in a thread; the losses of the last one, and the gradient of each stage's weight."""
    losses, gradients = [], [None] * stage_count
    distributed = threading.local()  # what each thread takes for torch.distributed

    def stage(index):
        distributed.__dict__.update(vars(transport.of(index)))
        weight = torch.full((), 2.0, requires_grad=True)

        def compute(chunk, micro_batch, received):
            is_first, is_last = index == chunk == 0, (index, chunk) == (stage_count - 1, chunks - 1)
            assert is_first == (received is None)
            output = (torch.full((micro_batch + 1,), float(micro_batch)) if is_first else received) * weight
            return output.sum() if is_last else output

        engine = Pipeline(
            links_of(index, stage_count, chunks),
            compute,
            lambda index: (index + 1,),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        found = engine.run(schedule(index))
        gradients[index] = weight.grad
        if index == stage_count - 1:
            losses.extend(float(loss) for loss in found)

    with mock.patch.object(pipeline_module, "dist", distributed):
        threads = [threading.Thread(target=stage, args=(index,)) for index in range(stage_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return losses, gradients


KINDS = [(ONE_FORWARD_ONE_BACKWARD, 1), (GPIPE, 1), (INTERLEAVED, 2), (INTERLEAVED, 3)]


@pytest.mark.parametrize("backward", [True, False], ids=["training", "validation"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("stage_count", [2, 3, 4, 7])
@pytest.mark.parametrize(("kind", "chunks"), KINDS)
def test_the_engine_never_deadlocks_where_sends_wait_for_their_receives(kind, chunks, stage_count, rounds, backward):
    transport = Rendezvous()
    micro_batches = stage_count * rounds if chunks > 1 else 2 * rounds - 1

    def schedule(index):
        if backward:
            return schedule_of(kind, index, stage_count, micro_batches, chunks=chunks)
        return forward_only(micro_batches, stage_count=stage_count, chunks=chunks)

    losses, gradients = run_stages(stage_count, transport, schedule, chunks=chunks)
    factor = 2.0 ** (stage_count * chunks)
    assert losses == [factor * index * (index + 1) for index in range(micro_batches)]
    if backward:
        assert gradients == [pytest.approx(chunks * sum(losses) / 2)] * stage_count
    assert not any(transport.queues.values())
    assert transport.most_sends <= MESSAGES_ON_THEIR_WAY * (2 if chunks > 1 else 1)
