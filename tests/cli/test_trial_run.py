"""The command by which the doctor measures links is one that `tlaunch run` takes."""

import pytest

from launcher.cli.trial_run import trial_options, words_of


@pytest.mark.parametrize(("engine", "by_hand"), [("mpi", False), ("slurm", False), ("hand", True), (None, True)])
def test_what_is_for_servers_started_by_hand(engine, by_hand, tmp_path):
    """No engine's run is told of it, though the examination was, by a default or the environment."""
    examination = {"engine": engine, "server": "h1", "coordinator_port": 29450}
    words = words_of(trial_options(examination, tmp_path, 29451))
    assert ("--server=h1" in words, "--coordinator-port=29451" in words) == (by_hand, by_hand)
