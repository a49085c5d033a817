"""`tlaunch ckpt`, and which checkpoint `--resume` means."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.checkpoint.index import INDEX, TOKENIZER, Index, NamedBox, PartFile, index_text
from launcher.cli.run_options import RunOptions
from launcher.cli.training.resume import names_a_run, resolve_checkpoint, resolve_model
from launcher.core.records import Layout
from launcher.corpus.dataset import content_digest
from launcher.mesh.boxes import Box
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from tests import checkpoints


@pytest.fixture(name="checkpoint")
def _checkpoint(launcher):
    """Gives a function that writes a checkpoint of a parameter of 2 x 3 to a run's directory."""

    def write(
        run, step, *settings, mtime=None, validation_loss=None, validation_bleu=None, init_from="", data="", text="text"
    ):
        directory = launcher.directory / "runs" / run / "checkpoints" / f"step-{step}"
        directory.mkdir(parents=True)
        (directory.parents[1] / "run.json").write_text("{}")
        (directory.parents[1] / "events.jsonl").write_text("")
        content = os.urandom(72)
        (directory / "rank0.safetensors").write_bytes(content)
        file = PartFile(72, hashlib.sha256(content).hexdigest(), 0, (NamedBox("head.weight", Box((0, 0), (2, 3))),))
        tokenizer = PartFile(1, hashlib.sha256(b"t").hexdigest())
        (directory / TOKENIZER).write_bytes(b"t")
        facts = json.loads(json.dumps(asdict(load_settings(TransformerSettings, None, list(settings)))))
        files, shapes = {"rank0.safetensors": file, TOKENIZER: tokenizer}, {"head.weight": (2, 3)}
        known = (step, "transformer", facts, Layout(dp=2), text, data, "F32", shapes, files)
        index = Index(*known, validation_loss=validation_loss, validation_bleu=validation_bleu, init_from=init_from)
        (directory / INDEX).write_text(index_text(index))
        if mtime is not None:
            os.utime(directory / INDEX, (mtime, mtime))
        return directory

    return write


def resumed_from(launcher, *words):
    """The words of the bundled trainer's command, of a run that is not started."""
    done = launcher.call("run", "--devices", 1, "--dry-run", "--json", *words, code=0)
    record = json.loads(done.stdout)
    argv = record["ranks"][0]["argv"]
    assert ("--resume" in argv) == (record["continues"] is not None)
    return (Path(argv[argv.index("--resume") + 1]) if "--resume" in argv else None), done.stderr


def test_the_list(launcher, checkpoint):
    first, second = checkpoint("20260101-000000-a", 5), checkpoint("20260102-000000-b", 7)
    (second / INDEX).write_text("{}")
    for words in ((), ("20260102-000000-b",), (second.parent,)):
        rows = json.loads(launcher.call("ckpt", "ls", *words, "--json", code=0).stdout)
        assert [row["path"] for row in rows] == [str(path) for path in ([second, first] if not words else [second])]
        assert rows[0]["damage"]
        assert not rows[-1]["damage"] or words
    shown = launcher.call("ckpt", "ls", code=0).stdout
    assert "damaged" in shown
    assert "dp=2" in shown


def test_the_best_of_each_run_is_marked(launcher, checkpoint):
    losses = {"20260101-000000-a": 2.5, "20260102-000000-b": 3}
    best = [checkpoint(name, 5, validation_loss=loss) for name, loss in losses.items()]
    other = checkpoint("20260101-000000-a", 6, validation_loss=2.75)
    checkpoint("20260101-000000-a", 7)
    checkpoint("20260103-000000-c", 5)
    rows = json.loads(launcher.call("ckpt", "ls", "--json", code=0).stdout)
    assert {row["path"] for row in rows if row["best"]} == set(map(str, best))
    assert [row["validation_loss"] for row in rows] == [None, 3, None, 2.75, 2.5]
    shown = [line.split() for line in launcher.call("ckpt", "ls", code=0).stdout.splitlines()]
    assert [line[-1] for line in shown if "best" in line] == list(map(str, reversed(best)))
    assert ", the best" not in launcher.call("ckpt", "ls", other, code=0).stdout


def test_the_best_has_the_highest_bleu_if_that_is_the_metric(launcher, checkpoint):
    for step, (loss, bleu) in enumerate([(2.0, 31.5), (1.0, 30.0)], start=1):
        metric = ("train.best_metric=bleu", "train.bleu_sentences=9")
        checkpoint("20260101-000000-a", step, *metric, validation_loss=loss, validation_bleu=bleu)
    checkpoint("20260102-000000-b", 1, *metric, validation_loss=5.0, validation_bleu=30.0)
    checkpoint("20260102-000000-b", 2, validation_loss=4.0)
    checkpoint("20260103-000000-c", 1, validation_loss=5.0, validation_bleu=31.0)
    checkpoint("20260103-000000-c", 2, *metric, validation_loss=4.0, validation_bleu=30.0)
    rows = json.loads(launcher.call("ckpt", "ls", "--json", code=0).stdout)
    best = [Path(row["path"]).relative_to(launcher.directory / "runs").parts[::2] for row in rows if row["best"]]
    assert sorted(best) == [
        ("20260101-000000-a", "step-1"), ("20260102-000000-b", "step-2"), ("20260103-000000-c", "step-1"),
    ]  # fmt: skip
    shown = launcher.call("ckpt", "ls", "20260101-000000-a", code=0).stdout
    assert [line.partition("BLEU ")[2].split()[:3] for line in shown.splitlines()[1:]] == [
        ["30.00", *shown.splitlines()[1].split()[-1:]], ["31.50,", "the", "best"],
    ]  # fmt: skip


def test_what_a_run_starts_from(launcher, checkpoint):
    """A checkpoint, a run or a model; other sizes are refused before ranks start; a resumed run needs it no more."""
    directory = checkpoint("20260101-000000-a", 5, "model.d_model=64", "data.source_length=40", "model.dropout=0.3")
    sizes = ("--set", "model.d_model=64", "--set", "data.source_length=40")

    def started_from(*words, is_ignored=False):
        done = launcher.call("run", "--devices", 1, "--dry-run", "--json", *sizes, *words, code=0)
        assert ("has no effect" in done.stderr) == is_ignored
        record = json.loads(done.stdout)
        argv = record["ranks"][0]["argv"]
        source = argv[argv.index("--init-from") + 1]
        assert record["options"]["init_from"] == source  # for `status`, `rerun` and `prune`
        return Path(source)

    assert started_from("--init-from", "20260101-000000-a") == started_from("--init-from", directory) == directory
    model = directory.parents[1] / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"")
    (model / "tokenizer.model").write_bytes(b"t")
    recipe = asdict(load_settings(TransformerSettings, None, list(sizes[1::2])))
    (model / "config.json").write_text(json.dumps({"program": "transformer", "recipe": recipe}))
    assert started_from("--init-from", "20260101-000000-a") == started_from("--init-from", model) == model
    resumed = checkpoint("20260102-000000-b", 5, *sizes[1::2], init_from="/gone/model")
    for words in (
        (),
        ("--init-from", "/gone/model"),
        ("--init-from", model),
    ):  # the tokenizer is that of the checkpoint
        assert started_from(*words, "--resume", resumed, is_ignored=model in words) == Path("/gone/model")
    refused = launcher.call("run", "--devices", 1, "--init-from", model, code=2).stderr
    assert "model.d_model = 64 (this run: 128), data.source_length = 40 (this run: 32)" in refused
    assert "hint: use `--set model.d_model=64 --set data.source_length=40`" in refused
    started_from("--init-from", model, "--set", "model.positions=learned")
    project = launcher.write("tlaunch.toml", "[run]\nresume = 'auto'\n")  # --init-from does not replace this value
    words = ("run", "--devices", 1, "--dry-run", *sizes, "--init-from", model)
    assert "--resume auto found no checkpoint" in launcher.call(*words, code=0).stderr
    project.unlink()
    (model / "config.json").write_text(json.dumps({"program": "resnet50", "recipe": {}}))
    assert "program resnet50" in launcher.call("run", "--devices", 1, "--init-from", model, code=2).stderr
    assert "gone" in launcher.call("run", "--devices", 1, "--init-from", "gone", code=2).stderr
    command = ("--init-from", model, "--", "true")
    assert "with COMMAND (true): --init-from" in launcher.call("run", "--devices", 1, *command, code=2).stderr


def test_what_one_holds(launcher, checkpoint):
    path = checkpoint("20260101-000000-a", 5)
    shown = launcher.call("ckpt", "show", path, code=0).stdout
    assert "head.weight  2 x 3" in shown
    assert json.loads(launcher.call("ckpt", "show", path, "--json", code=0).stdout)["step"] == 5
    (path / "rank0.safetensors").write_bytes(bytes(72))
    launcher.call("ckpt", "show", path, code=0)  # by the index alone
    (path / INDEX).unlink()
    launcher.refused(2, ["ckpt", "show", path])


def test_verify_names_the_file(launcher, checkpoint):
    whole, damaged = checkpoint("20260101-000000-a", 5), checkpoint("20260101-000000-a", 6)
    assert launcher.call("ckpt", "verify", "20260101-000000-a", code=0).stdout.count(": intact") == 2
    file = damaged / "rank0.safetensors"
    file.write_bytes(bytes(72))
    said = launcher.call("ckpt", "verify", whole, damaged, code=1).stdout
    assert (f"{whole}: intact" in said, f"{file} is damaged" in said) == (True, True)
    (whole / INDEX).unlink()
    assert str(whole / INDEX) in launcher.call("ckpt", "verify", whole, code=1).stdout


def test_where_there_is_none(launcher):
    (launcher.directory / "empty").mkdir()
    assert launcher.call("ckpt", "ls", code=0).stdout == ""
    for words in ("ckpt verify empty", "ckpt show no-such-run", "run --devices 1 --resume empty --dry-run"):
        launcher.refused(2, words.split())
    launcher.refused(2, ["run", "--resume", "auto", "--", "true"])  # it is the bundled trainer's


def test_which_checkpoint_is_meant(launcher, checkpoint):
    first, second = checkpoint("20260101-000000-a", 5), checkpoint("20260101-000000-a", 6)
    (launcher.directory / "runs/latest").symlink_to("20260101-000000-a")  # only until a run continues it
    for reference, meant in {
        first: first,
        "20260101-000000-a": second.parent,
        "20260101-000000-a/checkpoints/step-5": first,
        "runs/latest/checkpoints/step-5": first,
        "latest/checkpoints/step-5": first,
        "runs/latest/checkpoints": second.parent,
    }.items():
        assert resumed_from(launcher, "--resume", reference)[0] == meant
    assert launcher.call("ckpt", "show", "20260101-000000-a/checkpoints/step-5", code=0)


def test_a_path_may_begin_with_a_name_and_end_with_best(launcher):
    """A directory of the same name that is not a run hides neither."""
    paths = {
        step: checkpoints.write(
            launcher.runs / "20260101-000000-ft" / "checkpoints" / f"step-{step}",
            {"weight": (2,)}, checkpoints.numbered({"weight": (2,)}), step=step, validation_loss=loss,
        )
        for step, loss in ((4, 2.0), (5, 1.0), (6, None))
    }  # fmt: skip
    launcher.write("ft/a.en")
    for name in ("run.json", "events.jsonl"):
        launcher.write(f"runs/20260101-000000-ft/{name}", "{}")
    for run in ("ft", "20260101-000000-ft", "runs/20260101-000000-ft", launcher.runs / "20260101-000000-ft"):
        for name, step in (("best", 5), ("step-4", 4)):
            shown = launcher.call("ckpt", "show", f"{run}/checkpoints/{name}", code=0).stdout
            assert f"{paths[step]}\n" in shown
    assert resolve_model(launcher.runs, "ft/checkpoints/best") == paths[5]
    assert names_a_run(launcher.runs, "ft")
    assert not names_a_run(launcher.runs, str(paths[5].parent))
    shutil.rmtree(paths[5])
    shutil.rmtree(paths[4])
    assert "validated" in launcher.refused(2, ["ckpt", "show", "ft/checkpoints/best"])


@pytest.mark.parametrize("reference", [
    "runs/20260101-000000-a/checkpoints/step-7", "20260101-000000-a/checkpoints/step-7",
    "runs/20260101-000000-b/checkpoints/step-7", "20260101-000000-b/checkpoints", "20260101-000000-b",
    "20260101-000000-c/checkpoints/step-7",
])  # fmt: skip
def test_a_checkpoint_that_is_missing_is_no_missing_run(launcher, checkpoint, reference, snapshot):
    for step in (5, 6):
        checkpoint("20260101-000000-a", step)
    launcher.write("runs/20260101-000000-b/run.json", "{}")
    launcher.write("runs/20260101-000000-b/events.jsonl")
    assert launcher.refused(2, ["run", "--devices", 1, "--resume", reference]) == snapshot


def test_what_is_no_checkpoint_is_told_as_what_it_is(launcher, checkpoint, snapshot):
    checkpoint("20260101-000000-a", 5)
    launcher.write("exported/.metadata")
    launcher.write("model.ckpt")
    launcher.write("imported/notes.txt")
    names = ("exported", "model.ckpt", "imported", "imported/step-5", "runs/20260101-000000-a/step-5")
    resumed = (f"run --devices 1 --resume {name}" for name in names)
    shown = ("ckpt show 20260101-000000-a/step-7", "ckpt show nope")
    kinds = ("nope --format dcp", "exported --format mindspore", "model.ckpt --format dcp")
    imported = (f"ckpt import {kind} --like latest --output new" for kind in kinds)
    assert launcher.refused(2, *resumed, *shown, *imported) == snapshot


def test_a_run_without_checkpoints_names_the_one_that_it_continues(launcher, checkpoint, snapshot):
    path = checkpoint("20260101-000000-a", 5)
    continues = {"checkpoint": str(path), "step": 5, "run": "20260101-000000-a"}
    launcher.write("runs/20260102-000000-b/run.json", json.dumps({"continues": continues}))
    launcher.write("runs/20260102-000000-b/events.jsonl")
    assert launcher.refused(2, *(f"ckpt {verb} 20260102-000000-b" for verb in ("verify", "prune --keep 1"))) == snapshot


@pytest.mark.parametrize("words", [
    "--set model.d_model=64", "--set train.seed=9 --set train.precision=bfloat16",
    "--set train.seed=9 --set model.d_model=64", "",
])  # fmt: skip
def test_other_settings_are_refused_before_anything_starts(launcher, checkpoint, words, snapshot):
    """By the newest checkpoint whose index can be read; the ranks compare text, tokenizer and shapes."""
    checkpoint("20260101-000000-a", 5, "train.precision=bfloat16")
    (checkpoint("20260101-000000-a", 6) / INDEX).write_text("{}")
    told = launcher.refused(2, ["run", "--devices", 1, *words.split(), "--resume", "20260101-000000-a"])
    assert told == snapshot
    assert [run.name for run in (launcher.directory / "runs").iterdir()] == ["20260101-000000-a"]


def test_another_text_is_refused_before_anything_starts(launcher, checkpoint):
    """The hint keeps the data of the checkpoint's run, or starts a new training on the data that is given."""
    name, path = "20260101-000000-a", launcher.directory / "pairs.tsv"
    launcher.write("pairs.tsv", "le chat\tthe cat\n" * 400)
    launcher.write("more.tsv", "le chien\tthe dog\n" * 400)
    found = checkpoint(name, 5, data=str(path), text=content_digest(path))
    assert resumed_from(launcher, "--resume", name, "--data", "pairs.tsv")[0] == found
    refused = launcher.call("run", "--devices", 1, "--resume", name, "--set", "train.steps=9", code=2).stderr
    assert f"trained with {path}, but this run uses the built-in corpus" in refused
    assert f"`tlaunch rerun {name} --resume {name} --set train.steps=9`" in refused
    refused = launcher.call("run", "--devices", 1, "--resume", name, "--data", "more.tsv", code=2).stderr
    assert f"`tlaunch rerun {name} --init-from {name} --data more.tsv`" in refused
    record = {"cwd": str(launcher.directory), "options": {"devices": 1, "data": str(path)}}
    launcher.write(f"runs/{name}/run.json", json.dumps(record))
    assert launcher.call("rerun", name, "--resume", name, "--dry-run", code=0).stdout
    refused = launcher.refused(2, ["rerun", name, "--resume", name, "--data", "more.tsv", "--dry-run"])
    assert "--init-from" in refused
    launcher.write("pairs.tsv", "le chat\tthe cat\n" * 401)
    assert "which has changed since" in launcher.refused(
        2, ["run", "--devices", 1, "--resume", name, "--data", "pairs.tsv"]
    )


def test_epochs_without_effect_are_noted(launcher, checkpoint):
    checkpoint("20260101-000000-a", 5)
    words = "--resume", "20260101-000000-a", "--set", "train.steps=9", "--set", "train.epochs=6"
    assert "add `--set train.steps=0`" in resumed_from(launcher, *words)[1]
    assert "no effect" not in resumed_from(launcher, *words, "--set", "train.steps=0")[1]


def test_run_json_tells_which_run_goes_on(launcher, checkpoint):
    first, second = checkpoint("20260101-000000-a", 5), checkpoint("20260101-000000-a", 6)

    def told(reference):
        done = launcher.call("run", "--devices", 1, "--dry-run", "--json", "--resume", reference, code=0)
        return json.loads(done.stdout)["continues"]

    whole = {"checkpoint": str(second), "step": 6, "run": "20260101-000000-a"}
    assert told("20260101-000000-a") == whole
    (second / INDEX).write_text("{}")
    assert told("20260101-000000-a") == {**whole, "checkpoint": str(first), "step": 5}
    elsewhere = first.rename(launcher.directory / "copied")
    assert told(elsewhere) == {"checkpoint": str(elsewhere), "step": 5, "run": None}


def test_auto_leaves_another_precision_alone_unless_that_is_asked_for(launcher, checkpoint):
    wide = checkpoint("20260101-000000-a", 5, "train.precision=float64")
    assert resumed_from(launcher, "--resume", "auto")[0] is None
    for precision in ("float32", "float64"):
        found, _ = resumed_from(launcher, "--resume", "auto", "--set", f"train.precision={precision}")
        assert found == wide.parent


def test_auto_takes_the_newest_of_the_same_training(launcher, checkpoint):
    """With other settings that decide what the state is of it does not fit; a learning rate may be another one."""
    old = checkpoint("20260103-000000-c", 50, mtime=1000)
    new = checkpoint("20260101-000000-a", 5, "train.learning_rate=1", mtime=2000)
    checkpoint("20260102-000000-b", 500, "model.d_model=64", mtime=3000)
    assert resumed_from(launcher, "--resume", "auto")[0] == new.parent
    (new / INDEX).write_text("{}")
    assert resumed_from(launcher, "--resume", "auto")[0] == old.parent
    found, said = resumed_from(launcher, "--resume", "auto", "--set", "train.seed=9")
    assert found is None
    assert "; step-50 of 20260103-000000-c differs in train.seed = 1 (this run: 9)\n" in said


def test_auto_names_the_nearest_of_another_text(launcher, checkpoint):
    checkpoint("20260101-000000-a", 5)
    checkpoint("20260102-000000-b", 6, "train.batch_size=16", "train.seed=9")
    launcher.write("pairs.tsv", "le chat\tthe cat\n" * 400)
    found, said = resumed_from(launcher, "--resume", "auto", "--data", "pairs.tsv", "--set", "train.batch_size=16")
    path = launcher.directory / "pairs.tsv"
    assert found is None
    assert (
        f"step-6 of 20260102-000000-b differs in train.seed = 9 (this run: 1), --data = the packaged sample (this run: {path})"
        in said
    )


def test_auto_resumes_a_training_whose_initial_model_is_removed(launcher, checkpoint):
    initial = checkpoint("20260101-000000-base", 5, "train.seed=9")
    tuned = checkpoint("20260102-000000-tuned", 6, init_from=str(initial))
    run = "20260101-000000-base"
    names = (initial, run, "base", "20260101-", f"runs/{run}", f"{run}/checkpoints", f"{run}/checkpoints/step-5")
    for _ in range(2):  # before and after the removal
        for name in names:
            assert resumed_from(launcher, "--resume", "auto", "--init-from", name)[0] == tuned.parent
        shutil.rmtree(initial.parents[1], ignore_errors=True)
    for name in ("", "runs", "other", initial.with_name("step-6")):
        launcher.refused(2, ["run", "--devices", 1, "--resume", "auto", "--init-from", name])


@pytest.mark.parametrize("name", ["latest", "latest~0", "runs/latest/checkpoints/step-5", "a"])
def test_auto_refuses_an_initial_model_that_changes_with_each_run(launcher, checkpoint, name):
    for run in ("20260101-000000-a", "20260102-000000-a"):
        checkpoint(run, 5)
    (launcher.directory / "runs/latest").symlink_to("20260102-000000-a")
    refused = launcher.refused(2, ["run", "--devices", 1, "--resume", "auto", "--init-from", name])
    assert f"error: --resume auto cannot be combined with --init-from {name}" in refused


def test_auto_compares_the_content_of_the_tokenizer(launcher, checkpoint):
    written = checkpoint("20260101-000000-a", 5, "data.tokenizer=/gone/t.model")
    options = RunOptions(resume="auto", runs_dir=launcher.directory / "runs")
    for content, expected in (("t", written.parent), ("u", None)):
        name = f"data.tokenizer={launcher.write('moved.model', content)}"
        settings = asdict(load_settings(TransformerSettings, None, [name]))
        assert resolve_checkpoint(options, "transformer", settings, [name], settings)[0] == expected
    assert resumed_from(launcher, "--resume", "auto")[0] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_auto_takes_no_checkpoint_of_another_user(launcher, checkpoint):
    own, others = checkpoint("20260101-000000-a", 5, mtime=1000), checkpoint("20260102-000000-b", 500, mtime=2000)
    os.chown(others.parents[1], 65534, 65534)
    assert resumed_from(launcher, "--resume", "auto")[0] == own.parent
    os.chown(own.parents[1], 65534, 65534)
    assert resumed_from(launcher, "--resume", "auto")[0] is None
    assert resumed_from(launcher, "--resume", "20260102-000000-b")[0] == others


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_names_the_run_whose_checkpoints_it_removes(launcher, checkpoint):
    paths = [checkpoint("20260101-000000-a", step) for step in (5, 6)]
    run = paths[0].parents[1]
    (run.parent / "latest").symlink_to(run.name)
    os.chown(paths[0].parent, 65534, 65534)
    assert "uid 65534" in launcher.refused(2, "ckpt prune --keep 1")
