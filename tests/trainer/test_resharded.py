"""Checkpoints divided anew: as the other layout would have written them, and a training goes on from them bit by bit."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from launcher.checkpoint.index import NamedBox, name_of, read_index
from launcher.checkpoint.merge import OPTIMIZER, merge
from launcher.checkpoint.reshard import Plan, reshard
from launcher.checkpoint.tensors import opened
from launcher.checkpoint.ways import INTEGRATED, MODEL, OWNED, WAYS, name_of_rank
from launcher.core.codec import decode, encode
from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.load import load_settings
from launcher.recipes.quickstart.config import QuickstartSettings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.checkpoint.owners import plan_of
from launcher.trainer.checkpoint.read import candidates_at, restore
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.checkpoint.write import CheckpointWriter
from launcher.trainer.data.tokenizer import train_tokenizer
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.parallel.collectives import ALONE, Group
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.plan import apply_plan, copied
from launcher.trainer.programs import quickstart, transformer
from launcher.trainer.saved import load_model
from launcher.trainer.session import Session, meta_model, pipeline_stages, rule_of

PROGRAM = Path(__file__).parents[1] / "programs" / "resharded.py"
SIZES = ["model.vocabulary_size=300", "model.d_model=16", "model.heads=4", "model.feed_forward_dim=32"]
LAYOUTS = [Layout(), Layout(dp=3), Layout(mp=2), Layout(pp=2), Layout(dp=2, mp=4, pp=3)]
SHARED = ["model.share=all", "model.norm=post", "model.positions=sinusoidal"]
STEP = 2


def settings_of(*more):
    return load_settings(TransformerSettings, None, [*SIZES, *more])


def alone():
    place = place_from_environment({}, micro_batches=1)
    return World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())


def optimizer_of(settings, layout, rank):
    """That of a rank which has never met the others."""
    place = coordinate_of(rank, layout)
    mp, dp, pp = (
        Group(tuple(range(getattr(layout, axis))), getattr(place, axis)) if getattr(layout, axis) > 1 else ALONE
        for axis in ("mp", "dp", "pp")
    )
    model = meta_model(settings)
    stages = pipeline_stages(settings, layout.pp)[place.pp :: layout.pp]
    switches = settings.parallel
    placed = apply_plan(model, stages, mp, seed=1, device=torch.device("cpu"), dtype=torch.float32, parallel=switches)
    groups = settings.parallel.gradient_groups
    parameters = {name: one for name, one in model.named_parameters() if name not in copied(stages)}
    return ShardedOptimizer(parameters, placed, rule_of(settings.train), gradient_groups=groups, dp=dp, mp=mp, pp=pp)


@pytest.mark.parametrize("settings", [["parallel.gradient_groups=4"], [], SHARED], ids=["groups", "one", "shared"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_files_are_planned_as_optimizers_own(layout, settings):
    """Every rank's file holds the boxes of its optimizer, in their order, but for what another one owns, too."""
    settings = settings_of(*settings)
    plan = plan_of(transformer, settings, layout)

    assert [file.name for file in plan.files] == [name_of_rank(rank) for rank in range(layout.world_size)]
    for rank, file in enumerate(plan.files):
        owned = optimizer_of(settings, layout, rank).owned_boxes()
        assert list(file.boxes) == [NamedBox(each.name, each.box) for each in owned if not each.is_replica]


@pytest.mark.parametrize("shared", [[], SHARED], ids=["apart", "shared"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_plan_holds_the_model(layout, way, shared):
    """Every element once; in the ways that keep copies, as often as there are."""
    settings = settings_of(f"checkpoint.files={way}", *shared)
    plan = plan_of(transformer, settings, layout)
    shapes = {name: parameter.numel() for name, parameter in meta_model(settings).named_parameters()}
    counts = dict.fromkeys(shapes, 0)
    for each in {each for file in plan.files for each in file.boxes}:
        counts[each.name] += each.box.count

    assert counts == shapes
    boxes = [each for file in plan.files for each in file.boxes]
    if way in {OWNED, INTEGRATED}:
        assert len(boxes) == len(set(boxes))
    assert decode(Plan, json.loads(json.dumps(encode(plan)))) == plan


def test_a_plan_of_operators_that_are_cut_as_given_holds_the_model():
    """Of eight ranks that cut both weights by four, the first four own a part each."""
    settings = load_settings(QuickstartSettings, None, ["strategies.matmul=[[2, 4], [4, 1]]"])
    plan = plan_of(quickstart, settings, Layout(mp=8))

    assert [[each.box.count for each in file.boxes] for file in plan.files] == [[64, 128]] * 4 + [[]] * 4


def trained(directory, *more):
    """A training of some steps, and the checkpoint that it wrote."""
    settings, world = settings_of(*more), alone()
    session = Session(settings, world)
    examples = [Example([5 + row, 6, END], [7, 8 + row, END]) for row in range(6)]
    for step in range(1, STEP + 1):
        session.train_step(examples, 5e-3, step=step)
    writer = CheckpointWriter(directory, training_of(settings), world, keep=1)
    writer.save(STEP, session.optimizer)
    writer.finish()
    return session, directory / name_of(STEP)


def training_of(settings):
    shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    tokenizer = train_tokenizer(["le chat noir dort", "the black cat sleeps"], 300)
    return Training("transformer", dataclasses.asdict(settings), Layout(), "a text", "", shapes, tokenizer)


def merged(checkpoint, output):
    with opened(checkpoint, read_index(checkpoint), lambda _: None, lambda _: None) as stored:
        merge(stored, output, moments=True)
    return output


def test_a_merged_model_is_the_trainers_own(tmp_path):
    """To the last bit, and its file byte by byte what safetensors writes; so are the moments."""
    session, checkpoint = trained(tmp_path)
    output = merged(checkpoint, tmp_path / "model")
    weights = {name: parameter.detach() for name, parameter in session.model.named_parameters()}

    assert (output / MODEL).read_bytes() == save(weights, metadata={"format": "pt"})
    model, settings, _ = load_model(output)
    assert settings == session.settings
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())
    moments = load_file(output / OPTIMIZER)
    for each in session.optimizer.owned_boxes():
        for kind, values in zip(session.optimizer.kinds[1:], each.values[1:], strict=True):
            assert torch.equal(moments[f"{kind}/{each.name}"], values)


def test_a_training_in_bfloat16_gives_its_float32_weights(tmp_path):
    """The model that is read back has them, and computes with them; rounded they are those of the training."""
    session, checkpoint = trained(tmp_path, "train.precision=bfloat16")
    model, _, _ = load_model(merged(checkpoint, tmp_path / "model"))

    for name, parameter in session.model.named_parameters():
        found = model.get_parameter(name)
        assert found.dtype == torch.float32
        assert torch.equal(found.to(torch.bfloat16), parameter)


def test_a_training_goes_on_from_what_was_divided_and_joined(tmp_path):
    """Over a layout that cuts every axis: the state is the same, and so are the files, once it is divided as before."""
    session, checkpoint = trained(tmp_path)
    paths = [checkpoint, tmp_path / "divided", tmp_path / "joined"]
    for source, target, layout in zip(paths, paths[1:], (LAYOUTS[-1], Layout()), strict=False):
        with opened(source, read_index(source), lambda _: None, lambda _: None) as stored:
            plan, settings = plan_of(transformer, session.settings, layout), stored.index.settings
            reshard(stored, plan, layout, target, settings)
    assert read_index(paths[2]) == read_index(checkpoint)

    again = Session(session.settings, alone())
    found = restore(lambda: candidates_at(paths[1]), training_of(session.settings), again.optimizer, alone())
    assert found == (paths[1], STEP)
    for one, other in zip(session.optimizer.owned_boxes(), again.optimizer.owned_boxes(), strict=True):
        assert len(one.values) == len(other.values) == 3
        assert all(map(torch.equal, one.values, other.values))


@pytest.mark.distributed
def test_the_command_asks_the_trainer(tmp_path):
    """`tlaunch ckpt reshard` writes what `plan_of` says, and `diff` finds the state the same."""
    session, checkpoint = trained(tmp_path)
    tlaunch = [sys.executable, "-m", "launcher", "ckpt"]
    output = tmp_path / "divided"
    for words in (["reshard", checkpoint, "--dp", "2", "--mp", "2", "--output", output], ["diff", checkpoint, output]):
        done = subprocess.run([*tlaunch, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    index = read_index(output)
    assert all(
        file.boxes == index.files[file.name].boxes
        for file in plan_of(transformer, session.settings, index.layout).files
    )


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [("one", "dp2 mp2"), ("dp2 shared", "mp2 pp2 shared")], ids=" ".join)
def test_layouts_go_on_from_what_was_divided_for_them(tmp_path, names):
    """`tests/programs/resharded.py` without names does so for all six; names with "shared" have one matrix for embeddings and head."""
    argv = [sys.executable, PROGRAM, tmp_path / "trained", *names]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count("pass") == 2
