"""`tlaunch ckpt merge`, `diff` and `prune`: what they say, make and leave."""

import hashlib
import json
import os
import shutil
import sys

import pytest

from launcher.checkpoint.index import INDEX, NamedBox, checkpoints_in
from launcher.core.events import AgentEnded, AgentStarted, Cause
from launcher.mesh.boxes import Box
from tests.checkpoints import flip, numbered, tensors_in, write
from tests.programs import acted_run

SHAPES = {"head": (4, 3), "norm": (3,)}
OVER = [AgentEnded(Cause.FINISHED, 0)]
HALVES = {
    f"rank{rank}.safetensors": [
        NamedBox("head", Box((2 * rank, 0), (2, 3))),
        *[NamedBox("norm", Box((0,), (3,)))] * rank,
    ]
    for rank in range(2)
}


@pytest.fixture(name="run")
def _run(launcher):
    """Gives a function that makes a run with checkpoints of these steps."""

    def make(*steps, name="20260101-000000-a", events=OVER):
        acted_run.make(launcher.runs / name, events)
        for step in steps:
            write(launcher.runs / name / "checkpoints" / f"step-{step}", SHAPES, numbered(SHAPES), HALVES, step=step)
        return launcher.runs / name / "checkpoints"

    return make


def steps_in(directory):
    return [int(path.name.removeprefix("step-")) for path in checkpoints_in(directory)]


def test_merge(launcher, run):
    checkpoints = run(5, 7)
    assert launcher.call("ckpt", "merge", "20260101-000000-a", "--output", "model", code=0).stdout == "model\n"
    launcher.call("ckpt", "merge", checkpoints / "step-5", "--output", "with", "--optimizer", code=0)

    model = launcher.directory / "model"
    assert json.loads((model / "config.json").read_text())["training"]["step"] == 7
    assert tensors_in(model / "model.safetensors")["head"] == (SHAPES["head"], numbered(SHAPES)["head"][0])
    assert len(tensors_in(launcher.directory / "with" / "optimizer.safetensors")) == 4


def test_merge_of_an_average(launcher, run):
    checkpoints = run()
    for step, shift in ((2, 100.0), (4, 0.5), (6, 1.25), (7, 0.0), (9, 0.25)):
        values = numbered(SHAPES)
        for kinds in values.values():
            for number in range(len(kinds[0])):
                kinds[0][number] += shift
        write(checkpoints / f"step-{step}", SHAPES, values, HALVES, step=step)
    flip(checkpoints / "step-7" / "rank1.safetensors")
    done = launcher.call("ckpt", "merge", checkpoints.parent, "--output", "model", "--average", "3", code=0)

    model = launcher.directory / "model"
    assert "step-7 is left out" in done.stderr
    assert json.loads((model / "config.json").read_text())["training"]["averaged_steps"] == [9, 6, 4]
    shape, found = tensors_in(model / "model.safetensors")["head"]
    assert shape == SHAPES["head"]
    expected = [value + (0.5 + 1.25 + 0.25) / 3 for value in numbered(SHAPES)["head"][0]]
    assert list(found) == pytest.approx(expected, rel=1e-7)


def test_the_hint_for_too_few_checkpoints_can_be_followed(launcher, run):
    checkpoints = run(2, 4, 6)
    flip(checkpoints / "step-6" / "rank1.safetensors")
    told = launcher.call("ckpt", "merge", checkpoints.parent, "--output", "model", "--average", "5", code=2).stderr
    assert "has 2 intact checkpoints" in told
    assert "--average 2" in told
    launcher.call("ckpt", "merge", checkpoints.parent, "--output", "model", "--average", "2", code=0)

    flip(checkpoints / "step-4" / "rank1.safetensors")
    told = launcher.call("ckpt", "merge", checkpoints.parent, "--output", "other", "--average", "2", code=2).stderr
    assert "has 1 intact checkpoint\n" in told
    assert "single checkpoint" not in told


def test_an_average_of_too_few_or_of_different_trainings_is_refused(launcher, run, snapshot):
    checkpoints = run(5, 7)
    write(launcher.directory / "mixed" / "step-1", SHAPES, numbered(SHAPES), step=1)
    write(launcher.directory / "mixed" / "step-2", SHAPES, numbered(SHAPES), step=2, text="another text")
    words, name = "ckpt merge --output model --average", "runs/20260101-000000-a"
    wrong = (f"3 {name}", f"2 {name}/checkpoints/step-5", "2 mixed", f"2 --optimizer {name}", f"1 {name}")
    assert launcher.refused(2, *(f"{words} {each}" for each in wrong)) == snapshot
    flip(checkpoints / "step-5" / "rank0.safetensors")
    launcher.refused(2, f"{words} 2 runs/20260101-000000-a")
    assert not (launcher.directory / "model").exists()


def test_what_cannot_be_made_is_refused(launcher, run, snapshot):
    checkpoints = run(5, 7)
    flip(checkpoints / "step-7" / "rank1.safetensors")
    launcher.write("taken/file")
    name = "runs/20260101-000000-a"
    step = f"{name}/checkpoints/step-5"
    merges = (f"{step} --output taken", f"{step} --output {step}/model", f"{name} --output model")
    others = (
        f"diff {step} {name}/checkpoints/step-7",
        f"prune {step} --keep 1",
        f"prune {name} --keep 0",
        f"merge {name}",
    )
    wrong = (*(f"merge {each}" for each in merges), "merge no-such-run --output model", *others)
    assert launcher.refused(2, *(f"ckpt {each}" for each in wrong)) == snapshot


def test_an_index_that_is_a_pipe_is_told_and_not_waited_for(launcher, run):
    checkpoints = run(5, 7)
    (checkpoints / "step-7" / "index.json").unlink()
    os.mkfifo(checkpoints / "step-7" / "index.json")
    listed = json.loads(launcher.call("ckpt", "ls", "--json", code=0).stdout)
    found = [(each.get("step"), "not a regular file" in (each["damage"] or "")) for each in listed]
    assert found == [(None, True), (5, False)]


@pytest.mark.parametrize("words", ["diff {run} {run}", "merge {run} --average 2 --output model"])
def test_what_computes_needs_numpy(launcher, run, monkeypatch, words):
    run(5, 7)
    monkeypatch.setitem(sys.modules, "numpy", None)
    told = launcher.call("ckpt", *words.format(run="runs/20260101-000000-a").split(), code=2).stderr
    assert told.startswith("error: numpy is not installed")
    assert told.endswith("hint: run `pip install numpy`\n")
    launcher.call("ckpt", "merge", "runs/20260101-000000-a", "--output", "model", code=0)


def test_diff(launcher, run, snapshot):
    path, values = run(5) / "step-5", numbered(SHAPES)
    write(launcher.directory / "same", SHAPES, values, data="elsewhere")
    values["head"][2][1] += 1
    values["norm"][0][:] = values["norm"][1]
    write(launcher.directory / "other", SHAPES, values, step=6, text="another text")
    write(launcher.directory / "shaped", {"head": (3, 4), "word": (1,)}, numbered({"head": (3, 4), "word": (1,)}))
    told = [
        launcher.call("ckpt", "diff", path, "same", code=0),
        launcher.call("ckpt", "diff", path, "other", code=1),
        launcher.call("ckpt", "diff", path, "shaped", code=1),
        launcher.call("ckpt", "diff", path, "other", "--json", code=1),
    ]
    assert launcher.transcript(*told) == snapshot


def test_a_strategy_follows_from_the_index(launcher, run):
    found = json.loads(launcher.call("ckpt", "show", run(5), "--strategy", code=0).stdout)

    assert [each["file"] for each in found["parameters"]["head"]["boxes"]] == list(HALVES)


def test_prune_keeps_the_newest(launcher, run, snapshot):
    checkpoints = run(5, 7, 20, 100)
    planned = launcher.call("ckpt", "prune", "--keep", 2, "20260101-000000-a", "--dry-run", code=0)
    assert steps_in(checkpoints) == [100, 20, 7, 5]
    launcher.refused(2, ["ckpt", "prune", "--keep", 2, checkpoints])
    done = launcher.call("ckpt", "prune", "--keep", 2, checkpoints, "--yes", code=0)

    assert steps_in(checkpoints) == [100, 20]
    assert len(list(checkpoints.iterdir())) == 2
    assert launcher.transcript(planned, done) == snapshot


def test_prune_asks_a_person(launcher, run):
    checkpoints = run(5, 7)
    for answer, code, left in ((b"n\n", 1, [7, 5]), (b"y\n", 0, [7])):
        ours, theirs = os.openpty()
        os.write(ours, answer)
        with open(theirs, "rb") as stdin:  # noqa: PTH123 - a descriptor
            done = launcher.call("ckpt", "prune", checkpoints, "--keep", 1, code=code, stdin=stdin)
        os.close(ours)
        assert "step-5" in done.stderr
        assert steps_in(checkpoints) == left


def test_prune_counts_whole_ones(launcher, run):
    """A damaged one goes, and is none of those that are kept. The newest whole one never goes."""
    checkpoints = run(5, 7, 20, 100)
    flip(checkpoints / "step-100" / "rank0.safetensors")
    (checkpoints / "step-20" / "rank1.safetensors").unlink()
    launcher.call("ckpt", "prune", "--keep", 1, checkpoints, "--yes", code=0)
    assert steps_in(checkpoints) == [7]
    launcher.call("ckpt", "prune", "--keep", 3, checkpoints, code=0)
    assert steps_in(checkpoints) == [7]


def test_prune_removes_nothing_where_none_is_whole(launcher, run):
    checkpoints = run(5, 7)
    for step in (5, 7):
        flip(checkpoints / f"step-{step}" / "rank0.safetensors")
    assert "no checkpoint is intact" in launcher.refused(1, ["ckpt", "prune", checkpoints, "--keep", 1])
    write(checkpoints / "step-9", SHAPES, numbered(SHAPES), step=9)
    shutil.copytree(checkpoints / "step-9", checkpoints / "step-10")
    text = (checkpoints / "step-9" / INDEX).read_text().replace('"schema": 1', '"schema": 9')
    (checkpoints / "step-10" / INDEX).write_text(redigested(text))
    launcher.refused(2, ["ckpt", "prune", checkpoints, "--keep", 1])
    assert steps_in(checkpoints) == [10, 9, 7, 5]


def redigested(text):
    """The content of an index that was changed, with the digest of what it says now."""
    head, _, rest = text.partition(', "index": ')
    content = rest.removesuffix("}\n")
    assert head.startswith('{"sha256"')
    return f'{{"sha256": "{hashlib.sha256(content.encode()).hexdigest()}", "index": {content}}}\n'


@pytest.mark.parametrize("reference", ["20260101-000000-a", "runs/20260101-000000-a/checkpoints", "linked"])
def test_prune_refuses_a_run_that_is_going(launcher, run, reference):
    checkpoints = run(5, 7, events=[AgentStarted(acted_run.me(), None, 2)])
    (launcher.directory / "linked").symlink_to(checkpoints)
    launcher.refused(2, ["ckpt", "prune", reference, "--keep", 1])
    checkpoints.symlink_to(checkpoints.rename(launcher.directory / "disk"))  # a larger one
    launcher.refused(2, ["ckpt", "prune", checkpoints, "--keep", 1])


def test_prune_follows_no_link(launcher, run):
    checkpoints = run(7, 9)
    target = write(launcher.directory / "kept", SHAPES, numbered(SHAPES))
    (checkpoints / "step-5").symlink_to(target)
    launcher.call("ckpt", "prune", checkpoints, "--keep", 1, "-y", code=0)

    assert [path.name for path in checkpoints.iterdir()] == ["step-9"]
    assert (target / INDEX).is_file()
