"""`python -m launcher.trainer.checkpoint.foreign`: the process behind `tlaunch ckpt export` and `tlaunch ckpt import`.

Progress goes to stdout, and messages to the user to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.checkpoint.index import read_index
from launcher.core.text import some_of
from launcher.trainer.checkpoint.foreign.dcp_read import read_dcp
from launcher.trainer.checkpoint.foreign.dcp_write import write_dcp
from launcher.trainer.checkpoint.foreign.mindspore import read_mindspore
from launcher.trainer.checkpoint.foreign.process import run_converter
from launcher.trainer.checkpoint.foreign.progress import Progress, report
from launcher.trainer.checkpoint.foreign.state import SHOWN, ForeignState, check_fits, write_checkpoint

READERS: dict[str, Callable[[Path], ForeignState]] = {"dcp": read_dcp, "mindspore": read_mindspore}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.checkpoint.foreign", description=__doc__)
    commands = parser.add_subparsers(required=True)
    to_dcp = commands.add_parser("export", help="convert a trainer checkpoint to torch.distributed.checkpoint")
    to_own = commands.add_parser("import", help="convert another tool's checkpoint to a trainer checkpoint")
    to_own.add_argument("--format", choices=READERS, required=True, help="format of the checkpoint to read")
    to_own.add_argument("--like", type=Path, required=True, help="existing trainer checkpoint of the same model")
    to_own.add_argument("--step", type=int, help="training step of the checkpoint, if its files do not contain it")
    return run_converter(parser, (to_dcp, _export), (to_own, _import))


def _export(options: argparse.Namespace) -> None:
    write_dcp(options.path, read_index(options.path), options.output, Progress())


def _import(options: argparse.Namespace) -> None:
    like = read_index(options.like)
    state = READERS[options.format](options.path)
    check_fits(state, like, options.like)
    step = state.step() if options.step is None else options.step
    if len(state.kinds) < len(state.tensors):
        report(f"note: {options.path} has no optimizer moments; they are zero in the checkpoint")
    if state.left_out:
        report(f"note: entries that are not part of the state are left out: {some_of(state.left_out, SHOWN)}")
    write_checkpoint(options.output, state, like, options.like, step, Progress())


if __name__ == "__main__":
    sys.exit(main())
