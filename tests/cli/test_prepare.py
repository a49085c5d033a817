"""What is said of a run before it starts."""

import json
from itertools import pairwise

import pytest

from launcher.cli.launch.rank_tables import one_rank_note
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings

NOTE = "note: starting one rank, because neither --devices nor --rank-table is given"


@pytest.fixture
def devices(tmp_path):
    def make(kind, count):
        for name in (*(f"{kind}{number}" for number in range(count)), "nvidiactl", "davinci_manager", "null"):
            (tmp_path / name).touch()
        return tmp_path

    return make


@pytest.mark.parametrize("kind", ["nvidia", "davinci"])
def test_devices_that_would_lie_idle_are_counted(devices, kind):
    assert one_rank_note({}, devices(kind, 8)) == f"{NOTE}; this machine has 8 devices (--devices 8)"


@pytest.mark.parametrize(
    ("environment", "count"),
    [({}, 0), ({}, 1), ({"CUDA_VISIBLE_DEVICES": "0"}, 8), ({"ASCEND_RT_VISIBLE_DEVICES": "0"}, 8)],
)
def test_devices_are_not_counted_where_there_is_one_or_visibility_is_limited(devices, environment, count):
    assert one_rank_note(environment, devices("nvidia", count)) == NOTE


@pytest.mark.parametrize("command", ["run --dry-run", "run --dry-run --json", "explain", "render bash"])
def test_one_rank_by_default_is_noted(launcher, command):
    done = launcher.call(*command.split(), "--", "true")
    assert (done.returncode, done.stderr.count(NOTE), NOTE in done.stdout) == (0, 1, False)
    behind = launcher.call(*command.split(), "--", "true", "--devices=2").stderr
    assert f"{NOTE}; --devices=2 after COMMAND is passed to the program\n" in behind
    behind = launcher.call(*command.split(), "--", "true", "-n", "3", "--nproc_per_node=2").stderr
    assert "; --nproc_per_node=2 after COMMAND" in behind
    asked = launcher.call(*command.split(), "--devices", "1", "--", "true")
    assert (asked.returncode, NOTE in asked.stderr) == (0, False)


def test_a_launcher_within_the_launcher_is_noted(launcher):
    words = ("--", "mpirun", "-n", "2", "python", "train.py")
    noted = launcher.call("run", "--dry-run", "--devices", "2", *words, code=0).stderr
    assert "warning: mpirun starts ranks itself" in noted
    assert "`tlaunch run --engine mpi --devices 2 -- python train.py`" in noted
    assert "warning" not in launcher.call("run", "--dry-run", "--devices", "1", *words, code=0).stderr
    assert "warning: mpirun starts ranks itself" in launcher.call("run", "--dry-run", *words, code=0).stderr
    doubtful = launcher.call("run", "--dry-run", *words[:1], "srun", "--exclude=h", *words[2:], code=0).stderr
    assert "; to start the program once per rank, use `tlaunch run " in doubtful
    assert "(without --exclude)" in doubtful


def test_stages_by_hand_that_leave_ranks_idle_are_noted(launcher):
    cut = ("run", "--dry-run", "--devices", "2", "--pp", "2", "--micro-batches", "4", "--set")
    noted = launcher.call(*cut, "parallel.stages=[0,4]", code=0).stderr
    assert "warning: parallel.stages = [0, 4]: ranks are predicted to wait for" in noted
    assert "warning" not in launcher.call(*cut, "parallel.stages=[3,1]", code=0).stderr


@pytest.mark.parametrize(("given", "chosen"), [("", 0), ("--profile", 5), ("--profile --set train.profile_steps=2", 2)])
def test_a_profile_is_a_setting_of_the_trainer(launcher, given, chosen):
    argv = json.loads(launcher.call("run", "--dry-run", "--json", *given.split(), code=0).stdout)["ranks"][0]["argv"]
    words = argv[argv.index("launcher.trainer") + 1 :]
    settings = [word for option, word in pairwise(words) if option == "--set"]
    assert load_settings(TransformerSettings, None, settings).train.profile_steps == chosen
