"""What TensorBoard makes of the trainer's event files."""

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
