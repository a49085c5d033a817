"""A merged checkpoint is the model that the trainer itself would have saved."""

import dataclasses

import torch
from safetensors.torch import load_file, save

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import name_of, read_index
from launcher.checkpoint.model_merge import OPTIMIZER, merge
from launcher.checkpoint.tensors import opened
from launcher.core.records import Layout
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.data.tokenizer import train_tokenizer
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.saved import load_model
from launcher.trainer.session import Session, meta_model

from .transformers import alone, transformer_settings

SIZES = ["model.vocabulary_size=300", "model.d_model=16", "model.heads=4", "model.feed_forward_dim=32"]
STEP = 2


def settings_of(*more):
    return transformer_settings(*SIZES, *more)


def trained(directory, *more):
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
