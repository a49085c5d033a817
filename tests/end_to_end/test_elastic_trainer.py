"""An elastic run of the bundled trainer over two hosts, one of which is cut off."""

import subprocess

import pytest

from .conftest import TLAUNCH, environment, table_of, tlaunch
from .test_resume import losses_in

LOST_AFTER = ("--lost-after", 8)
ENDLESS = 10**6  # steps
SETTINGS = [
    "model.d_model=32", "model.feed_forward_dim=64", "model.dropout=0.3", "model.vocabulary_size=400",
    "train.precision=float64", "train.translations=0", "train.batch_size=8", "checkpoint.every_steps=5",
]  # fmt: skip


def losses(run_dir):
    path = run_dir / "device0" / "train.log"
    return losses_in(path.read_text()) if path.is_file() else {}


def trainer(steps, *words):
    settings = [word for setting in [*SETTINGS, f"train.steps={steps}"] for word in ("--set", setting)]
    return ["run", *map(str, words), *settings, "--console", "none"]


@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_host_is_cut_off_and_the_training_goes_on(two_hosts, small_text, tmp_path, wait_until):
    """The other host goes on from the newest checkpoint; the cut one comes back, and all train on: the losses are those of one process."""
    table = table_of(tmp_path / "table.json", two_hosts.addresses())
    options = (
        "--rank-table", table, "--dp", 2, "--mp", 2, "--elastic", *LOST_AFTER, "--grace", 2, "--data", small_text,
    )  # fmt: skip
    run_dir = tmp_path / "runs" / "latest"
    started = []

    def start(host):
        argv = [two_hosts.root / "on", host, "env", "-C", tmp_path, *TLAUNCH, *trainer(ENDLESS, *options)]
        output = (tmp_path / f"said-{len(started)}").open("w")
        with output:
            process = subprocess.Popen(
                list(map(str, argv)), env=environment({}), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    def begun():
        path = run_dir / "events.jsonl"
        text = path.read_text() if path.is_file() else ""
        return text.count('"event": "AttemptStarted"')

    def reached(count):
        return len(losses(run_dir)) >= count

    try:
        first, second = start("h1"), start("h2")
        wait_until(lambda: reached(10), "ten steps", 120)
        with two_hosts.unplugged("h2"):
            wait_until(lambda: begun() >= 2, "an attempt without h2", 120)
            there = len(losses(run_dir))
            wait_until(lambda: reached(there + 10), "ten more steps", 120)
            assert second.wait(120) != 0
        again = start("h2")
        wait_until(lambda: begun() >= 3, "an attempt with h2", 120)
        there = len(losses(run_dir))
        wait_until(lambda: reached(there + 10), "ten more steps", 120)
        assert two_hosts.on("h1", "env", "-C", tmp_path, *TLAUNCH, "stop").returncode == 0
        assert {first.wait(120), again.wait(120)} == {143}
    finally:
        for process in started:
            process.kill()
            process.wait()
    found = losses(run_dir)
    alone = tlaunch(*trainer(len(found), "--devices", 1, "--data", small_text), cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert found == losses(run_dir)
