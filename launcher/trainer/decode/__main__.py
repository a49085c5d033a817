"""`python -m launcher.trainer.decode MODEL`: the process that `tlaunch translate` and `tlaunch evaluate` start for each device.

It answers what it reads from stdin (`launcher/recipes/transformer/translation.py`), and ends with it. What a person is to
read is written to stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from pathlib import Path

import torch

from launcher.core.codec import decode, encode
from launcher.core.errors import EXIT_OK, TlaunchError
from launcher.corpus.text import normalised
from launcher.recipes.transformer.translation import (
    ANSWER_MARK,
    Answer,
    Ready,
    Scores,
    Scoring,
    Sentences,
    Translations,
)
from launcher.trainer.decode.beam import Search
from launcher.trainer.decode.score import all_scores, check_installed
from launcher.trainer.decode.translator import Translator
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.saved import load_model


def main() -> int:
    """Answer until stdin ends; the exit code is 0, or that of the TlaunchError that ended it."""
    faulthandler.enable()
    keep_freed_memory()
    options = _parser().parse_args()
    try:
        if options.scores:
            check_installed()
        _serve(options)
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_OK


def _serve(options: argparse.Namespace) -> None:
    device = _device(options.device, options.index)
    model, settings, tokenizer = load_model(options.model)
    direction, how = settings.data.direction, Search(options.beam, options.alpha)
    translator = Translator(model.to(device), tokenizer, settings.data)

    def translated(asked: Sentences) -> Translations:
        found = translator.translate(asked.sentences, how, batch_tokens=options.batch_tokens)
        return Translations(tuple(each.text for each in found), tuple(each.cut_tokens for each in found))

    def scored(asked: Scoring) -> Scores:
        references = [normalised(text) for text in asked.references] if settings.data.normalise else asked.references
        return all_scores(asked.hypotheses, references, direction.rpartition("_")[2])

    _answer(Ready(direction, str(device), settings.data.source_length))
    for line in sys.stdin:
        asked = json.loads(line)
        _answer(translated(decode(Sentences, asked)) if "sentences" in asked else scored(decode(Scoring, asked)))


def _answer(answer: Answer) -> None:
    sys.stdout.write(f"{ANSWER_MARK}{json.dumps(encode(answer))}\n")
    sys.stdout.flush()


def _device(wanted: str, index: int) -> torch.device:
    """Return the accelerator of that number where there are so many, else the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if wanted == "cpu" or accelerator is None or torch.accelerator.device_count() <= index:
        return torch.device("cpu")
    torch.accelerator.set_device_index(index)
    return torch.device(accelerator.type, index)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.decode", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a trained model")
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--batch-tokens", type=int, required=True)
    parser.add_argument("--device", choices=("auto", "cpu"), required=True)
    parser.add_argument("--index", type=int, default=0, help="of the device")
    parser.add_argument("--scores", action="store_true", help="scores will be asked for")
    return parser


if __name__ == "__main__":
    sys.exit(main())
