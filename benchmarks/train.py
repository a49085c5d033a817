"""Claim: the bundled trainer takes less time and memory than others for the same model, on one and on several ranks.

    python benchmarks/train.py [--data PATH] [--only NAME] [--rounds N] [--before CHECKOUT]

The peers are a loop over torch.nn.Transformer with torch.optim.AdamW, and Hugging Face's MarianMTModel (extra
`bench`), with the same size, dropout and precision. Each runs in a separate process, with one thread per rank. They
use torch's default allocator; the trainer, as in every run, keeps freed memory. The peer for eight ranks is torch's
own parallelism. In each round all programs take the same batches in turn, and each round has new batches; a ratio is
the median of the rounds'. Ratios of one process are of CPU time, which excludes other load on the machine. Ratios of
several ranks are of elapsed time.

Without --data, the packaged sample is used. The sizes are those of the small Transformer for Multi30K ("m30k") and of
the MindSpore tutorial. --before is a checkout of commit 947f4a1. Its trainer takes the same rounds after this one's,
and is compared by medians; without it, these comparisons are skipped. Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from common.checks import Checks
from common.options import parser
from training.batches import M30K, TUTORIAL
from training.layouts import data_parallel, head_and_loss, shared_memory, stages
from training.one_process import memory, random_batches, same_batches
from training.torch_stack import torch_stack

MEASUREMENTS = {
    "m30k": partial(same_batches, "m30k", M30K, 1.65),
    "tutorial": partial(same_batches, "tutorial", TUTORIAL, 3.0),
    "random": random_batches,
    "memory": memory,
    "dp": data_parallel,
    "head": head_and_loss,
    "pp": stages,
    "shared_memory": shared_memory,
    "torch": torch_stack,
}


def main() -> int:
    options_parser = parser(__doc__, tuple(MEASUREMENTS))
    options_parser.add_argument("--data", type=Path, help="sentence pairs, as `tlaunch data` writes them")
    options_parser.add_argument("--before", type=Path, help="a checkout of 947f4a1")
    options = options_parser.parse_args()
    if find_spec("transformers") is None:
        raise SystemExit("MarianMTModel needs the extra `bench`: pip install -e '.[bench]'")
    torch.set_num_threads(1)
    checks = Checks()
    for name in options.only or MEASUREMENTS:
        MEASUREMENTS[name](options, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
