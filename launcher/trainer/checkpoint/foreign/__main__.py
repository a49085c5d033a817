"""`python -m launcher.trainer.checkpoint.foreign`: the process behind `tlaunch ckpt export` and `tlaunch ckpt import`.

Progress goes to stdout, and messages to the user to stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from launcher.checkpoint.index import read_index
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, exit_code_of
from launcher.core.text import some_of
from launcher.trainer.checkpoint.foreign.dcp_read import read_dcp
from launcher.trainer.checkpoint.foreign.dcp_write import write_dcp
from launcher.trainer.checkpoint.foreign.mindspore import read_mindspore
from launcher.trainer.checkpoint.foreign.progress import Progress, report
from launcher.trainer.checkpoint.foreign.state import SHOWN, ForeignState, check_fits, write_checkpoint

READERS: dict[str, Callable[[Path], ForeignState]] = {"dcp": read_dcp, "mindspore": read_mindspore}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    faulthandler.enable()
    for number in ENDING:
        signal.signal(number, _end)
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.checkpoint.foreign", description=__doc__)
    commands = parser.add_subparsers(required=True)
    to_dcp = commands.add_parser("export", help="convert a trainer checkpoint to torch.distributed.checkpoint")
    to_own = commands.add_parser("import", help="convert another tool's checkpoint to a trainer checkpoint")
    for command, work in ((to_dcp, _export), (to_own, _import)):
        command.set_defaults(work=work)
        command.add_argument("path", type=Path, help="checkpoint to read")
        command.add_argument("--output", type=Path, required=True, help="path of the new checkpoint; must not exist")
    to_own.add_argument("--format", choices=READERS, required=True, help="format of the checkpoint to read")
    to_own.add_argument("--like", type=Path, required=True, help="existing trainer checkpoint of the same model")
    to_own.add_argument("--step", type=int, help="training step, if the checkpoint files do not contain one")
    options = parser.parse_args()
    try:
        options.work(options)
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        report(f"error: {error.filename or options.output}: {error.strerror or error}")
        return EXIT_FAILURE
    return EXIT_OK


def _end(number: int, _frame: object) -> NoReturn:
    """Handle a signal by raising SystemExit, so that incomplete output is removed."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(exit_code_of(-number))


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
