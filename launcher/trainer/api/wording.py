"""Errors of the training loop in the words of `train`: the loop knows options of the command line, which a network of one's own has not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from launcher.core.errors import TlaunchError
from launcher.recipes.train import CheckpointConfig, ParallelConfig
from launcher.trainer.api.settings import NetworkTrainConfig

_NAMES = "|".join(
    field.name for section in (NetworkTrainConfig, ParallelConfig, CheckpointConfig) for field in fields(section)
)
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"--set [a-z]+\.(\w+)=(\S+?)(?=[,)]|\s|$)", r"\1 = \2"),
        (r"--output DIR", "output = another directory"),
        (r"--checkpoints DIR", "output = a directory"),
        (r"`--data` with the same files", "the same samples"),
        (r"--resume\b", "resume"),
        (rf"(?<![\w/.])(?:train|parallel|checkpoint)\.({_NAMES})\b", r"\1"),
    )
)


@contextmanager
def in_words_of_train() -> Iterator[None]:
    """Have errors that are raised inside `with` name arguments of `train` instead of options."""
    try:
        yield
    except TlaunchError as error:
        hint = None if error.hint is None else as_arguments(error.hint)
        error.message, error.hint = as_arguments(error.message), hint
        raise


def as_arguments(text: str) -> str:
    """Return a message in which options are arguments.

    >>> as_arguments("--set train.seed=1, or without --resume")
    'seed = 1, or without resume'
    >>> as_arguments("train.py:7: parallel.transport is shared_memory")
    'train.py:7: transport is shared_memory'
    """
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
