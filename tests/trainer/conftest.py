"""What TensorBoard makes of the trainer's event files, and torch on a busy machine."""

import pytest


@pytest.fixture(scope="session")
def board():
    """Gives a function: of the event files in a directory, by tag, the time in seconds, step and value of each scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory):
        found = EventAccumulator(str(directory))
        found.Reload()
        return {
            tag: [(each.wall_time, each.step, each.value) for each in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
        }

    return read


@pytest.fixture
def one_thread():
    """Has torch compute by one thread: several of them, where tests share few cores, wait for each other for seconds."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
