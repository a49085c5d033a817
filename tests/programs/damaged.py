"""Damage each file of a checkpoint in each way, and hold against it what verify and a training say that goes on from there.

    damaged.py DIRECTORY [FILES [DAMAGE]]        owned | slices | one_copy | integrated; truncated | flipped | deleted | exchanged
    damaged.py DIRECTORY "full disk" [FILES]     on a small tmpfs, which takes root

A training of two data-parallel and two model-parallel ranks writes two checkpoints of such files. For each file of the newest
one and each damage, `tlaunch ckpt verify` has to name it and end with 1; two ranks have to go on from a peer's copy, where there
is one, or where no tensor is in that file, else from the older checkpoint; their log has to name the damaged file, and the
checkpoint that they write at once has to be equal to the one that they took, to the last bit. Without names all of it is done.

On the full disk a training writes checkpoints until there is no room left: it has to end well, its log to say why checkpoints
are missing, those that are there have to be whole, and when there is room again a training has to go on from the newest.
Exit 1 if something of that is not so.
"""

import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ranks import fork_ranks
from resumed import LAYOUTS, SAVED, STEPS, equal, start, state_of, train

from launcher.checkpoint.file_layout import OWNED, SLICES, WAYS
from launcher.checkpoint.index import INDEX, checkpoints_in, name_of, read_index

RANKS, AGAIN = "dp2 mp2", "dp2"
FULL_DISK = "full disk"
PEERS = {"rank0.safetensors": 2, "rank1.safetensors": 3, "rank2.safetensors": 0, "rank3.safetensors": 1}
DISK, ROOM = "size=5m", "size=60m"
TRAINER = [
    *("-m", "launcher.trainer", "--set", "model.d_model=32", "--set", "model.feed_forward_dim=64", "--set", "model.heads=2"),
    *("--set", "model.vocabulary_size=400", "--set", "train.translations=0", "--set", "train.batch_size=4"),
    *("--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep=20"),
]  # fmt: skip


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flip,
    "deleted": lambda path: path.unlink(),
    "exchanged": lambda path: shutil.copy(path.parents[1] / name_of(SAVED) / path.name, path),
}


def go_on(directory, whole):
    """Write a checkpoint at once of the one that two ranks take; return what they say."""
    directory.mkdir()
    dp, mp, pp, _, _ = LAYOUTS[AGAIN]
    child = os.fork()
    if child == 0:
        os.dup2(os.open(directory / "log", os.O_WRONLY | os.O_CREAT), 1)
        work = functools.partial(train, directory, AGAIN, whole, steps=0)
        fork_ranks(directory.name, work, dp=dp, mp=mp, pp=pp)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    said = (directory / "log").read_text()
    assert status == 0, said
    return said


def verify(path):
    argv = [sys.executable, "-m", "launcher", "ckpt", "verify", path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def failure_of(way, whole, here, name, damage):
    """Return what is not as it has to be, after that damage to that file; None if all is."""
    shutil.copytree(whole, here)
    newest = here / name_of(STEPS)
    DAMAGES[damage](newest / name)
    if (newest / name).exists() and (newest / name).read_bytes() == (whole / newest.name / name).read_bytes():
        return None if verify(newest)[0] == 0 else "verify finds what is not there"  # a tokenizer is that of all steps
    code, said = verify(newest)
    if code != 1 or str(newest / name) not in said:
        return f"verify ends with {code}: {said}"
    told = go_on(here.with_name(f"{here.name} again"), here)
    has_tensors = name in (index := read_index(whole / newest.name)).files and index.files[name].boxes
    survives = name != INDEX and (way == SLICES or not has_tensors)
    [line] = [line for line in told.splitlines() if str(newest / name) in line] or [
        f"{newest / name} is not named: {told}"
    ]
    expected = (
        f"is read from rank{PEERS[name]}.safetensors" if way == SLICES and has_tensors else "it contains no slice"
    )
    if not line.endswith(expected if survives else f"; {newest.name} is not used"):
        return line
    if ("can still resume" in said) != survives:
        return said
    taken = name_of(STEPS if survives else SAVED)
    [found] = checkpoints_in(here.with_name(f"{here.name} again"))
    return (
        None if found.name == taken and equal(state_of(whole / taken), state_of(found)) else f"{found} is another one"
    )


def damaged(directory, way, damages):
    whole = directory / way
    start(whole, RANKS if way == OWNED else f"{RANKS} {way}")
    names = [path.name for path in sorted((whole / name_of(STEPS)).iterdir())]
    failed = []
    for name, damage in itertools.product(names, damages):
        failure = failure_of(way, whole, directory / f"{way} {name} {damage}", name, damage)
        if failure is not None:
            failed.append(name)
            print(f"{way:12} {name:20} {damage:10} DIFFERS: {failure}", flush=True)
    print(f"{way}: {len(names)} files, {len(damages)} damages: {'DIFFERS' if failed else 'pass'}", flush=True)
    return not failed


def trained(runs, checkpoints, way, steps):
    """Train so many steps on two ranks; return the exit code, and the log of rank 0."""
    wanted = ("--set", f"train.steps={steps}", "--set", f"checkpoint.files={way}", "--checkpoints", checkpoints)
    argv = [sys.executable, "-m", "launcher", "run", "--devices", "2", "--runs-dir", runs, "--", sys.executable]
    done = subprocess.run([*argv, *TRAINER, *wanted], capture_output=True, text=True, check=False)
    return done.returncode, (runs / "latest" / "device0" / "train.log").read_text() + done.stderr[-2000:]


def full_disk(directory, way):
    """Fill a tmpfs by checkpoints; see what is there then."""
    disk = directory / f"disk {way}"
    disk.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(f"full disk, {way}: skipped, as no tmpfs can be mounted: {done.stderr.strip()}")
        return True
    try:
        return _full_disk(directory / f"runs {way}", disk / "checkpoints", way)
    finally:
        subprocess.run(["umount", disk], check=True)


def _full_disk(runs, checkpoints, way, steps=6):
    code, log = trained(runs, checkpoints, way, steps)
    told = r"the checkpoint of step (\d+) could not be written: .*No space left on device"
    missed = [int(step) for step in re.findall(told, log)]
    found = [read_index(path).step for path in checkpoints_in(checkpoints)]
    verified, _ = verify(checkpoints)
    left = len(list(checkpoints.iterdir()))
    subprocess.run(["mount", "-o", f"remount,{ROOM}", checkpoints.parent], check=True)
    again, log_again = trained(runs, checkpoints, way, steps + 1)
    newest = max(found)
    holds = {
        "it ends well": code == 0,
        "it fills the disk": bool(missed),
        "it tells of each step without a checkpoint": sorted([*found, *missed]) == list(range(1, steps + 1)),
        "all are whole": verified == 0,
        "nothing else is there": left == len(found),
        "a training goes on": again == 0 and f"{name_of(newest)}, after step {newest}" in log_again,
        "and writes again": (checkpoints / name_of(steps + 1)).exists(),
    }
    failed = [what for what, is_so in holds.items() if not is_so]
    result = f"DIFFERS: not so: {', '.join(failed)}\n{log}\n{log_again}" if failed else "pass"
    print(f"full disk, {way}: {len(found)} of {steps} checkpoints found room: {result}", flush=True)
    return not failed


def main(directory, names):
    if names[:1] == [FULL_DISK]:
        results = [full_disk(directory, way) for way in names[1:] or (OWNED, SLICES)]
    else:
        results = [damaged(directory, way, names[1:] or DAMAGES) for way in names[:1] or WAYS]
        results += [] if names else [full_disk(directory, way) for way in (OWNED, SLICES)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
