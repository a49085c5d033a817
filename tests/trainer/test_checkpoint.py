"""Checkpoints: whole or not there, told when damaged, and read by every layout."""

import dataclasses
import hashlib
import json
import math
import os
import random
import re
import shutil
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launcher.checkpoint.finish import strategy_text
from launcher.checkpoint.index import (
    INDEX,
    KINDS,
    SCHEMA_OF_COPIES,
    STRATEGY,
    best_of,
    checkpoints_in,
    index_text,
    name_of,
    partial_name,
    read_index,
    readable,
    remove_partials,
)
from launcher.checkpoint.same_settings import differing_settings
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.records import Layout
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.checkpoint.restore import candidates_at, restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.session import Session, meta_model
from tests.checkpoints import flip
from tests.conftest import file_size_limit

from .conftest import run_program
from .transformers import alone, transformer_settings

SIZES = ["model.vocabulary_size=67", "model.d_model=16", "model.feed_forward_dim=32", "model.dropout=0.3"]


def settings_of(*more):
    return transformer_settings(*SIZES, "train.precision=float64", *more)


def training_of(settings, **other):
    shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    facts = dataclasses.asdict(settings)
    return dataclasses.replace(Training("transformer", facts, Layout(), "a text", "", shapes, b"a tokenizer"), **other)


def batch(step):
    numbers = random.Random(step)
    words = [[numbers.randrange(4, 67) for _ in range(numbers.randint(1, 9))] for _ in range(6)]
    return [Example([*each, END], [*reversed(each), END]) for each in words]


def train(session, steps):
    return [session.train_step(batch(step), 5e-3, step=step).loss for step in steps]


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory):
    """The directory of three checkpoints, of steps 2, 4 and 6, and of the losses of eight steps."""
    directory = tmp_path_factory.mktemp("trained")
    settings, world = settings_of(), alone()
    session = Session(settings, world)
    writer = CheckpointWriter(directory / "checkpoints", training_of(settings), world, keep=4)
    losses = []
    for step in range(1, 9):
        losses += train(session, [step])
        if step in (2, 4, 6):
            writer.save(step, session.optimizer)
    assert writer.finish() == 6
    (directory / "losses.json").write_text(json.dumps(losses))
    return directory


@pytest.fixture(name="directory")
def _directory(trained, tmp_path):
    """A copy of these checkpoints; beside it are the losses."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "checkpoints"


def resumed(directory, **other):
    """A session that went on, the checkpoint that it took, and the losses of those that were to come."""
    settings = settings_of()
    session = Session(settings, alone())
    found = restore(lambda: candidates_at(directory), training_of(settings, **other), session.optimizer, alone())
    losses = json.loads((directory.parent / "losses.json").read_text())
    return session, found, losses[found[1] :] if found else losses


def test_a_training_goes_on_bit_by_bit(directory):
    session, found, losses = resumed(directory)
    assert found == (directory / name_of(6), 6)
    assert train(session, [7, 8]) == losses


def test_the_newest_are_kept(tmp_path):
    settings, world = settings_of(), alone()
    (tmp_path / partial_name(99, "a1")).mkdir()
    session = Session(settings, world)
    writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=2)
    for step in (1, 2, 3, 10):
        writer.save(step, session.optimizer)
    writer.finish()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-10", "step-3"]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_best_is_kept_besides_the_newest(tmp_path):
    """By the losses in the indexes, also in those that a run before has written; one that is not finite is none."""
    settings, world = settings_of(), alone()
    session = Session(settings, world)
    for losses in ({1: 3.0, 2: 2.0, 3: 4.0, 4: None}, {5: math.nan, 6: 2.5}):
        writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=1, keep_best=True)
        for step, loss in losses.items():
            writer.save(step, session.optimizer, validation_loss=loss)
        writer.finish()
        assert [path.name for path in checkpoints_in(tmp_path)] == [name_of(max(losses)), "step-2"]
    writer.save(7, session.optimizer, validation_loss=1.5)
    writer.finish()
    assert [read_index(path).validation_loss for path in checkpoints_in(tmp_path)] == [1.5]
    assert best_of(readable(checkpoints_in(tmp_path))) == tmp_path / "step-7"


def test_an_index_of_an_older_version_has_no_validation(directory):
    path = directory / name_of(6) / INDEX
    content = json.loads(path.read_text())["index"]
    del content["validation_loss"]
    text = json.dumps(content)
    path.write_text(f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "index": {text}}}\n')
    assert read_index(path.parent).validation_loss is None
    assert best_of(readable(checkpoints_in(directory))) is None


def test_a_step_that_comes_again_replaces_its_checkpoint(directory):
    session, _, _ = resumed(directory)
    (directory / name_of(6) / INDEX).write_text("{}")
    writer = CheckpointWriter(directory, training_of(settings_of()), alone(), keep=4)
    writer.save(6, session.optimizer)
    writer.finish()
    assert read_index(directory / name_of(6)).step == 6


def test_the_copy_is_of_one_step(tmp_path):
    settings, world = settings_of(), alone()
    session = Session(settings, world)
    weights = {name: parameter.clone() for name, parameter in session.model.named_parameters()}
    writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=2)
    writer.save(1, session.optimizer)
    train(session, [1, 2])
    writer.finish()
    found = load_file(tmp_path / name_of(1) / "rank0.safetensors")
    for name, expected in weights.items():
        assert torch.equal(found[f"weight/{name}"], expected)


def files_of(checkpoint):
    return sorted(path.name for path in checkpoint.iterdir())


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "one bit": flip,
    "gone": lambda path: path.unlink(),
    "of another step": lambda path: shutil.copy(path.parents[1] / name_of(4) / path.name, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["index.json", "rank0.safetensors"])
def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(directory, name, damage, capfd):
    newest = directory / name_of(6)
    assert files_of(newest) == ["index.json", "rank0.safetensors", "strategy.json", "tokenizer.model"]
    DAMAGES[damage](newest / name)
    session, found, losses = resumed(directory)
    assert found == (directory / name_of(4), 4)
    assert train(session, [5, 6]) == losses[:2]
    assert str(newest) in (told := capfd.readouterr().out)
    assert "is not used" in told


@pytest.fixture(name="copied")
def _copied(directory):
    """The newest checkpoint with a second file of the same slice, as `slices` of two data-parallel ranks have it."""
    newest = directory / name_of(6)
    shutil.copy(newest / "rank0.safetensors", newest / "rank1.safetensors")
    index = read_index(newest)
    files = {**index.files, "rank1.safetensors": index.files["rank0.safetensors"]}
    index = dataclasses.replace(index, layout=Layout(dp=2), files=files, schema=SCHEMA_OF_COPIES)
    (newest / INDEX).write_text(index_text(index))
    older = directory / name_of(4)
    shutil.copy(older / "rank0.safetensors", older / "rank1.safetensors")  # to be exchanged
    (older / "tokenizer.model").write_bytes(b"another")
    return directory


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["rank0.safetensors", "rank1.safetensors", "strategy.json", "tokenizer.model"])
def test_a_copy_serves(copied, name, damage, capfd):
    newest = copied / name_of(6)
    DAMAGES[damage](newest / name)
    session, found, losses = resumed(copied)
    assert found == (newest, 6)
    assert train(session, [7, 8]) == losses
    [line] = [line for line in capfd.readouterr().out.splitlines() if str(newest / name) in line]
    copy = {"rank0.safetensors": "rank1.safetensors", "rank1.safetensors": "rank0.safetensors"}.get(name)
    assert line.endswith(f"is read from {copy}" if copy else "it contains no slice")


def test_without_any_copy_left_an_older_one_is_taken(copied, capfd):
    for name in ("rank0.safetensors", "rank1.safetensors"):
        flip(copied / name_of(6) / name)
    _, found, _ = resumed(copied)
    assert found == (copied / name_of(4), 4)
    assert "is not used" in capfd.readouterr().out


def test_one_file_has_the_names_of_the_model(tmp_path):
    settings, world = settings_of(), alone()
    session, again = Session(settings, world), Session(settings, world)
    train(session, [1])
    writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=2, way="integrated")
    writer.save(1, session.optimizer)
    writer.finish()
    names = dict(session.model.named_parameters())
    found = load_file(tmp_path / name_of(1) / "model.safetensors")
    restore(lambda: candidates_at(tmp_path), training_of(settings), again.optimizer, world)
    assert set(found) == {f"{kind}/{name}" for kind in KINDS for name in names}
    assert all(torch.equal(found[f"weight/{name}"], value) for name, value in names.items())
    assert train(again, [2]) == train(session, [2])


def test_the_strategy_is_what_the_index_says(directory):
    newest = directory / name_of(6)
    assert (newest / STRATEGY).read_text() == strategy_text(read_index(newest))


def test_a_checkpoint_without_its_index_is_told(directory):
    (directory / name_of(6) / INDEX).unlink()
    with pytest.raises(UnreadableError, match=r"index\.json is missing"):
        resumed(directory / name_of(6))


def test_where_none_is_whole_nothing_begins_anew(directory):
    """It would replace what a person may yet repair. Without any there is nothing to lose."""
    for path in checkpoints_in(directory):
        flip(path / INDEX)
    with pytest.raises(UnreadableError, match="no checkpoint is usable"):
        resumed(directory)
    settings = settings_of()
    assert restore(list, training_of(settings), Session(settings, alone()).optimizer, alone()) is None


def test_a_damaged_one_that_was_named_names_the_others(directory):
    flip(directory / name_of(6) / "rank0.safetensors")
    with pytest.raises(UnreadableError, match=r"rank0\.safetensors is damaged") as raised:
        resumed(directory / name_of(6))
    assert f"resume from {directory} " in raised.value.hint
    assert raised.value.hint.endswith("step-4, step-2")


def test_what_goes_on_from_an_older_one_keeps_what_it_writes(directory):
    for step in (4, 6):
        flip(directory / name_of(step) / "rank0.safetensors")
    session, found, _ = resumed(directory)
    assert found == (directory / name_of(2), 2)
    writer = CheckpointWriter(directory, training_of(settings_of()), alone(), keep=2)
    writer.save(3, session.optimizer)
    assert writer.finish() == 3
    assert [path.name for path in checkpoints_in(directory)] == ["step-3", "step-2"]


@pytest.mark.parametrize("change", [
    {"step": -5}, {"dtype": "BF16"}, {"shapes": {}}, {"files": {}}, {"settings": {"model": [1]}}, {"schema": "1"},
    *({"box": box} for box in (((10**9, 0), (1, 16)), ((0, 0), (-67, -16)), ((0,), (1072,)), ((0, 0), (66, 16)))),
], ids=str)  # fmt: skip
def test_an_index_that_cannot_be_is_damaged(directory, change):
    path = directory / name_of(6) / INDEX
    content = json.loads(path.read_text())["index"]
    if box := change.pop("box", None):
        boxes = content["files"]["rank0.safetensors"]["boxes"]
        next(each for each in boxes if each["name"] == "head.weight")["box"] = {"start": box[0], "size": box[1]}
    text = json.dumps({**content, **change})
    path.write_text(f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "index": {text}}}\n')
    with pytest.raises(UnreadableError):
        read_index(path.parent)


def test_files_of_others_stay(tmp_path):
    others = [tmp_path / ".model.1a2b.partial", tmp_path / "notes"]
    for path in others:
        path.mkdir()
    CheckpointWriter(tmp_path, training_of(settings_of()), alone(), keep=2)
    assert sorted(tmp_path.iterdir()) == others


def test_what_cannot_be_removed_fails_no_checkpoint(directory):
    moved, told = directory.with_name("moved"), []
    session, _, _ = resumed(directory)
    writer = CheckpointWriter(
        directory,
        training_of(settings_of()),
        alone(),
        keep=1,
        on_saved=lambda _: directory.rename(moved),
        on_unremoved=told.append,
    )
    writer.save(7, session.optimizer)
    assert writer.finish() == 7
    assert [error.filename for error in told] == [str(directory)]
    assert read_index(moved / name_of(7)).step == 7


def test_another_run_that_writes_there_is_told(tmp_path):
    """It removes what is not whole, and takes it for that of a run which was killed."""
    settings, world, is_over = settings_of(), alone(), threading.Event()
    session = Session(settings, world)
    writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=2)

    def remove():
        while not is_over.is_set():
            remove_partials(tmp_path)

    def save():
        for step in range(1, 1000):
            writer.save(step, session.optimizer)
            writer.finish()

    other = threading.Thread(target=remove)
    other.start()
    try:
        with pytest.raises(TlaunchError, match="another run"):
            save()
    finally:
        is_over.set()
        other.join()


def test_nothing_stays_of_a_writer_that_was_killed_at_its_beginning(tmp_path, monkeypatch):
    def kill(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        CheckpointWriter(tmp_path, training_of(settings_of()), alone(), keep=2)
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    CheckpointWriter(tmp_path, training_of(settings_of()), alone(), keep=2)
    assert list(tmp_path.iterdir()) == []


def test_narrow_weights_are_kept_as_the_optimizer_has_them(tmp_path):
    settings, world = settings_of("train.precision=bfloat16"), alone()
    session, again = Session(settings, world), Session(settings, world)
    train(session, [1, 2])
    writer = CheckpointWriter(tmp_path, training_of(settings), world, keep=2)
    writer.save(2, session.optimizer)
    writer.finish()
    restore(lambda: candidates_at(tmp_path), training_of(settings), again.optimizer, world)
    assert train(again, [3, 4]) == train(session, [3, 4])


@pytest.mark.parametrize(
    ("other", "kind"),
    [({"text": "another"}, UsageError), ({"program": "another"}, UsageError), ({"tokenizer": b"another"}, UsageError)],
    ids=["text", "program", "tokenizer"],
)
def test_another_training_is_refused(directory, other, kind):
    with pytest.raises(kind, match="step-6"):
        resumed(directory, **other)


@pytest.mark.parametrize(("setting", "differs"), [
    ("model.d_model=32", "model.d_model"), ("train.seed=2", "train.seed"), ("train.batch_size=7", "train.batch_size"),
    ("data.target_length=9", "data.target_length"), ("data.target_language=de", None),
    ("model.dropout=0", None), ("train.learning_rate=1", None), ("parallel.gradient_groups=3", None),
    ("train.precision=float32", "train.precision"),
])  # fmt: skip
def test_what_must_be_the_same(directory, setting, differs):
    index = read_index(directory / name_of(6))
    found = [name for name, *_ in differing_settings(index, dataclasses.asdict(settings_of(setting)))]
    assert found == ([] if differs is None else [differs])


@pytest.mark.parametrize(
    ("recorded", "chosen", "differs"), [("de", "de", []), ("de", "", []), ("de", "en", ["data.target_language"])]
)
def test_languages_differ_only_if_both_are_known(directory, recorded, chosen, differs):
    index = read_index(directory / name_of(6))
    data = {**index.settings["data"], "target_language": recorded}
    index = dataclasses.replace(index, settings={**index.settings, "data": data})
    wanted = dataclasses.asdict(settings_of(f"data.target_language={chosen}"))
    assert [name for name, *_ in differing_settings(index, wanted)] == differs


@pytest.mark.parametrize(("setting", "differs"), [
    ("model.norm=post", "model.norm"),
    ("model.scale_embedding=true", "model.scale_embedding"),
    ("train.seed=1", None),
])  # fmt: skip
def test_a_setting_that_an_older_version_did_not_have_was_its_default(directory, setting, differs):
    index = read_index(directory / name_of(6))
    older = {name: value for name, value in index.settings["model"].items() if name not in {"norm", "scale_embedding"}}
    index = dataclasses.replace(index, settings={**index.settings, "model": older})
    defaults = dataclasses.asdict(TransformerSettings())
    found = [
        name for name, *_ in differing_settings(index, dataclasses.asdict(settings_of(setting)), defaults=defaults)
    ]
    assert found == ([] if differs is None else [differs])


@pytest.mark.parametrize("normalise", ["true", "false"])
def test_a_version_that_did_not_normalise_is_resumed(directory, tmp_path, normalise):
    settings, world = settings_of(f"data.normalise={normalise}"), alone()
    older = Path(shutil.copytree(directory / name_of(6), tmp_path / name_of(6)))
    index = read_index(older)
    data = {name: value for name, value in index.settings["data"].items() if name != "normalise"}
    index = dataclasses.replace(index, settings={**index.settings, "data": data})
    (older / INDEX).write_text(index_text(index))
    assert not list(
        differing_settings(index, dataclasses.asdict(settings), defaults=dataclasses.asdict(TransformerSettings()))
    )
    training, optimizer = training_of(settings), Session(settings, world).optimizer
    assert restore(lambda: [older], training, optimizer, world) == (older, 6)
    other = dataclasses.replace(training, tokenizer=b"another")
    with pytest.raises(UsageError, match="different tokenizer") as refusal:
        restore(lambda: [older], other, optimizer, world)
    assert refusal.value.hint.startswith("set data.normalise=false" if normalise == "true" else "use the same data")


def test_a_switch_is_told_as_it_is_set(directory):
    settings, world = settings_of("model.scale_embedding=true"), alone()
    session = Session(settings, world)
    with pytest.raises(UsageError, match=r"model\.scale_embedding = false \(this run: true\)") as refusal:
        restore(lambda: candidates_at(directory), training_of(settings), session.optimizer, world)
    [_, setting, *_] = refusal.value.hint.replace(",", " ").split()
    assert settings_of(setting) == settings_of()


def test_another_precision_must_be_asked_for(directory):
    settings, world = settings_of("train.precision=float32"), alone()
    session = Session(settings, world)
    with pytest.raises(UsageError, match=r"train\.precision = float64"):
        restore(lambda: candidates_at(directory), training_of(settings), session.optimizer, world)
    asked = training_of(settings, named=frozenset({"train.precision"}))
    restore(lambda: candidates_at(directory), asked, session.optimizer, world)
    narrow, losses = train(session, [7, 8]), json.loads((directory.parent / "losses.json").read_text())[6:]
    assert narrow == pytest.approx(losses, rel=1e-5)
    assert narrow != losses


def test_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(UnreadableError, match="no checkpoint"):
        candidates_at(tmp_path)


def test_a_full_disk_loses_nothing(directory):
    session, _, _ = resumed(directory)
    writer = CheckpointWriter(directory, training_of(settings_of()), alone(), keep=4)
    with file_size_limit(4096):
        writer.save(7, session.optimizer)
        with pytest.raises(TlaunchError, match="step 7"):
            writer.finish()
    assert sorted(path.name for path in directory.iterdir()) == ["step-2", "step-4", "step-6"]
    writer.save(8, session.optimizer)
    assert writer.finish() == 8


@contextmanager
def unwritable(directory):
    """Nothing can be made in the directory, by root neither."""
    directory.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(0o755)


def test_where_nothing_can_be_written_a_training_that_has_saved_some_goes_on():
    settings, told = settings_of(), []
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:  # above which another user can read, too
        Path(parent).chmod(0o755)
        directory = Path(parent, "checkpoints")
        directory.mkdir()
        for on_unwritable in (None, told.append):
            with unwritable(directory), pytest.raises(UnreadableError, match=re.escape(str(directory))):
                CheckpointWriter(directory, training_of(settings), alone(), keep=4, on_unwritable=on_unwritable)
        session = Session(settings, alone())
        writer = CheckpointWriter(directory, training_of(settings), alone(), keep=4)
        writer.save(1, session.optimizer)
        assert writer.finish() == 1
        with unwritable(directory):
            writer = CheckpointWriter(directory, training_of(settings), alone(), keep=4, on_unwritable=told.append)
            writer.save(2, session.optimizer)
            with pytest.raises(TlaunchError, match="rank 0"):
                writer.finish()
        shutil.rmtree(directory)  # and made anew
        writer.save(3, session.optimizer)
        assert writer.finish() == 3
    assert len(told) == 1


@pytest.mark.distributed
@pytest.mark.timeout(900)
def test_killed_again_and_again(tmp_path):
    assert run_program("killed.py", tmp_path / "k", "10").count("pass") == 2


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [("slices", "flipped"), ("full disk", "slices")], ids=" ".join)
def test_damaged_files_and_full_disks(tmp_path, names):
    """By several ranks; `tests/programs/damaged.py` without names damages the files of all four ways in all ways."""
    said = run_program("damaged.py", tmp_path / "d", *names)
    if "skipped" in said:
        pytest.skip(said)
    assert "pass" in said


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "names", [("one", "dp2 mp2", "dp2 mp2 pp2"), ("one", "dp2 one_copy", "dp2 mp2 integrated")], ids=" ".join
)
def test_layouts_go_on_from_each_others_checkpoints(tmp_path, names):
    """`tests/programs/resumed.py` without names compares all of them, in all four ways of saving."""
    assert run_program("resumed.py", tmp_path / "trained", *names).count("pass") == 9
