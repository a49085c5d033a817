"""Compare the CPU time of beam search with Hugging Face's MarianMTModel.generate (extra `bench`).

    python benchmarks/translate.py [--rounds N] [--beam N] [--sentences N]

Both models have the size of the small Transformer for Multi30K ("m30k") and random weights. They translate the same
IDs with the same beam, and end each translation after the same number of tokens, so that no model gains by ending
early. In each round both take turns, in separate processes with one thread, after a few warm-up sentences. The peer
runs with torch's default allocator, and again with freed memory kept, as tlaunch does. A ratio is the median of the
rounds'. Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from common.checks import Bound, Checks, median_ratio
from torch import Tensor
from training.batches import M30K, settings_of

from launcher.trainer.decode.beam import Search, search
from launcher.trainer.decode.cache import CachedDecoder
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.model.initial import initial_weight
from launcher.trainer.model.transformer import BEGIN, END, PAD
from launcher.trainer.saved import single_device_model
from launcher.trainer.session import model_shapes

TOKENS = 16  # of each translation, END included: the mean of Multi30K
MIN_SOURCE, MAX_SOURCE = 6, 26  # tokens of a source
BATCH = 64
PROGRAMS = ("tlaunch", "marian", "marian, memory kept")

Translate = Callable[[Tensor, int], int]  # of sources and a beam; returns how many tokens the translations have


def main() -> int:
    options = _options()
    if options.program:
        print(*_measured(options))
        return 0
    if find_spec("transformers") is None:
        raise SystemExit("MarianMTModel needs the extra `bench`: pip install -e '.[bench]'")
    checks = Checks()
    batches: list[dict[str, float]] = []
    single: list[dict[str, float]] = []
    for _ in range(options.rounds):
        seconds = {name: _in_a_process(name, options) for name in PROGRAMS}
        batches.append({name: values[0] for name, values in seconds.items()})
        single.append({name: values[1] for name, values in seconds.items()})
    for name in PROGRAMS:
        rate = options.sentences / min(row[name] for row in batches)
        checks.tell(f"{name}: sentences per second of CPU time, beam {options.beam}, batches of {BATCH}", rate)
        checks.tell(f"{name}: CPU time of one sentence, in seconds", min(row[name] for row in single))
    checks.tell("tlaunch / marian, CPU time", median_ratio(batches, *PROGRAMS[:2]), Bound(0.5, 0.4))
    checks.tell(
        "tlaunch / marian, memory kept, CPU time", median_ratio(batches, PROGRAMS[0], PROGRAMS[2]), Bound(0.7, 0.5)
    )
    checks.tell("tlaunch / marian, CPU time of one sentence", median_ratio(single, *PROGRAMS[:2]), Bound(1.0, 0.7))
    return 1 if checks.failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=192)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process(name: str, options: argparse.Namespace) -> list[float]:
    words = ["--program", name, "--beam", str(options.beam), "--sentences", str(options.sentences)]
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    return [float(value) for value in done.stdout.split()]


def _measured(options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of CPU time of all sentences in batches, and of one sentence."""
    torch.set_num_threads(1)
    if options.program != "marian":
        keep_freed_memory()
    translate = _tlaunch() if options.program == "tlaunch" else _marian()
    batches = _sources(options.sentences)
    for warm_up in (batches[0], batches[0][:1]):
        translate(warm_up, options.beam)
    seconds = []
    for some in (batches, [batches[len(batches) // 2][:1]]):
        began_s = time.process_time()
        tokens = sum(translate(source_BS, options.beam) for source_BS in some)
        seconds.append(time.process_time() - began_s)
        assert tokens == TOKENS * sum(map(len, some)), f"{tokens} tokens"
    return seconds[0], seconds[1]


def _sources(count: int) -> list[Tensor]:
    """Return batches of sources, sorted by length as both programs would get them."""
    random = torch.Generator().manual_seed(1)
    vocabulary = settings_of(M30K).model.vocabulary_size
    lengths = torch.randint(MIN_SOURCE, MAX_SOURCE + 1, (count,), generator=random).sort(descending=True).values
    batches = []
    for length_B in lengths.split(BATCH):
        source_BS = torch.randint(END + 1, vocabulary, (len(length_B), int(length_B[0])), generator=random)
        position_S = torch.arange(source_BS.shape[1])
        source_BS[position_S == length_B[:, None] - 1] = END
        source_BS[position_S >= length_B[:, None]] = PAD
        batches.append(source_BS)
    return batches


def _tlaunch() -> Translate:
    settings = settings_of(M30K)
    shapes = model_shapes(settings)
    weights = {name: initial_weight(name, torch.Size(shape), 1) for name, shape in shapes.items()}
    decoder = CachedDecoder(single_device_model(settings, weights, torch.device("cpu")))

    def translate(sources: Tensor, beam: int) -> int:
        # At this score no hypothesis ends by itself: with random weights END is as likely as any of 10,000 tokens, and longer ones are better.
        how = Search(beam, alpha=10.0)
        found = search(decoder, sources, [TOKENS] * len(sources), how, settings.model.vocabulary_size)
        return sum(len(each.ids) + 1 for each in found)

    return translate


def _marian() -> Translate:
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - the extra `bench`
    from transformers.utils import logging  # noqa: PLC0415 - as above

    logging.set_verbosity_error()
    settings = settings_of(M30K)
    sizes = settings.model
    torch.manual_seed(1)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=sizes.vocabulary_size, decoder_vocab_size=sizes.vocabulary_size, tie_word_embeddings=False,
            share_encoder_decoder_embeddings=False, d_model=sizes.d_model,
            max_position_embeddings=settings.data.source_length,
            encoder_layers=sizes.encoder_layers, decoder_layers=sizes.decoder_layers,
            encoder_attention_heads=sizes.heads, decoder_attention_heads=sizes.heads,
            encoder_ffn_dim=sizes.feed_forward_dim, decoder_ffn_dim=sizes.feed_forward_dim, activation_function="relu",
            pad_token_id=PAD, eos_token_id=END, bos_token_id=BEGIN, decoder_start_token_id=BEGIN, forced_eos_token_id=END,
            attn_implementation="sdpa",
        )
    ).eval()  # fmt: skip

    @torch.inference_mode()
    def translate(sources: Tensor, beam: int) -> int:
        found = model.generate(
            sources, attention_mask=(sources != PAD).long(), num_beams=beam, length_penalty=1.0,
            min_new_tokens=TOKENS, max_new_tokens=TOKENS,
        )  # fmt: skip
        return found[:, 1:].numel()  # all after BEGIN

    return translate


if __name__ == "__main__":
    raise SystemExit(main())
