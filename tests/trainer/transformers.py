"""Small transformers that train in this process."""

import torch

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.session import Session


def transformer_settings(*settings):
    return load_settings(TransformerSettings, None, list(settings))


def alone(micro_batches=1):
    """Return the world of a single rank."""
    place = place_from_environment({}, micro_batches=micro_batches)
    return World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())


def session_of(*settings, micro_batches=1):
    return Session(transformer_settings(*settings), alone(micro_batches))
