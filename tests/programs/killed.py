"""Kill a training again and again at random instants, go on on random layouts, and hold it against one that was never disturbed.

    killed.py DIRECTORY [KILLS [SEED]]

Exit 1 if a damaged checkpoint was taken, or a loss is not within 1e-12 of the undisturbed one; where every attempt before had the
same layout it must be equal to the last bit.
"""

import ctypes
import functools
import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from ranks import fork_ranks
from resumed import LAYOUTS, TOLERANCE, train

from launcher.checkpoint.index import checkpoints_in, damage_of, read_index

STEPS, EVERY = 30, 3
ONE = "one"
OF_ONE_TRAINING = [name for name in LAYOUTS if not name.endswith("shared")]
PR_SET_CHILD_SUBREAPER = 36


def start(directory, name, steps):
    """Fork a process group that trains from the newest checkpoint in `directory` to the end; return its leader."""
    leader = os.fork()
    if leader:
        return leader
    os.setsid()
    os.dup2(os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    dp, mp, pp, _, _ = LAYOUTS[name]
    try:
        work = functools.partial(train, directory, name, steps=steps, every=EVERY)
        fork_ranks(name, work, dp=dp, mp=mp, pp=pp, micro_batches=pp)
    except BaseException:  # noqa: BLE001 - a child must never return into its parent's code
        os._exit(1)
    os._exit(0)


def losses_of(directory):
    """All lines that were written whole: a step, its loss, and the first step of that attempt."""
    path = directory / "losses.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def disturbed(directory, kills, numbers, names):
    """Train to the end, killed so many times."""
    directory.mkdir(parents=True)
    done = 0
    while True:
        leader = start(directory, numbers.choice(names), STEPS)
        if done == kills:
            _, status = os.waitpid(leader, 0)
            assert status == 0, (directory / "log").read_text()[-3000:]
            return
        before, wait_s = len(losses_of(directory)), numbers.uniform(0, 0.1)
        awaited = numbers.randint(1, 8)  # steps after which it is killed, or after so long
        deadline = time.monotonic() + numbers.choice((0.5, 20.0))
        while len(losses_of(directory)) < before + awaited and time.monotonic() < deadline:
            if os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                if any(line["step"] == STEPS for line in losses_of(directory)[before:]):
                    break  # it was over before
                raise SystemExit(f"it ended by itself: {(directory / 'log').read_text()[-3000:]}")
            time.sleep(0.002)
        time.sleep(wait_s)
        kill_group(leader)
        done += 1
        if len(losses_of(directory)) and losses_of(directory)[-1]["step"] == STEPS:
            for path in checkpoints_in(directory)[:-1]:  # it was over: back to the oldest
                path.rename(directory / f".{path.name}.killed.partial")
        for path in checkpoints_in(directory):
            for name, file in read_index(path).files.items():
                assert damage_of(path, name, file) is None


def kill_group(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        os.kill(leader, signal.SIGKILL)
        os.waitpid(leader, 0)
    with suppress(ChildProcessError):  # its ranks have become our children
        while True:
            os.waitpid(-leader, 0)


def main(directory, kills=100, seed=1):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    numbers = random.Random(seed)
    disturbed(directory / "undisturbed", 0, numbers, [ONE])
    expected = {line["step"]: line["loss"] for line in losses_of(directory / "undisturbed")}
    failed = 0
    for name, names, share in (("any layout", OF_ONE_TRAINING, 0.8), ("one layout", [ONE], 0.2)):
        count = round(kills * share)
        disturbed(directory / name, count, numbers, names)
        lines = losses_of(directory / name)
        difference = max(abs(line["loss"] - expected[line["step"]]) / abs(expected[line["step"]]) for line in lines)
        complete = {line["step"] for line in lines} == set(expected)
        resumed = len({line["first"] for line in lines if line["first"] > 1})
        passes = complete and difference <= (TOLERANCE if names != [ONE] else 0)
        failed += not passes
        print(
            f"{name}: {count} kills, went on after {resumed} different steps, {len(lines)} losses, "
            f"{difference:.0e}: {'pass' if passes else 'DIFFERS'}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
