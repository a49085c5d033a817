"""A rank that numbers its lines and writes them as fast as it can: `numbered.py LINES FOLDER [WAITS]`.

Each line is one `write`, as of unbuffered output; every third one carries a time. `half`: before its second half a rank
waits until FOLDER/go exists. `restarts`: in attempts 0 and 1 the rank of that number fails, each time otherwise, once
all ranks have written all lines; the others sleep until they are ended.
"""

import os
import sys
import time
from pathlib import Path

line_count, folder, waits = int(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3:])
rank, attempt = int(os.environ["RANK"]), int(os.environ["TLAUNCH_ATTEMPT"])


def write(numbers):
    for number in numbers:
        when = time.strftime("%Y-%m-%d %H:%M:%S ") if number % 3 == 0 else ""
        line = b"%sline %07d of rank %d, attempt %d: %s\n" % (
            when.encode(),
            number,
            rank,
            attempt,
            b"x" * (number % 50),
        )
        assert os.write(1, line) == len(line)


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


if "half" in waits:
    write(range(line_count // 2))
    wait_for((folder / "go").exists)
    write(range(line_count // 2, line_count))
else:
    write(range(line_count))
if "restarts" in waits and attempt < 2:
    (folder / f"written.{attempt}.{rank}").touch()
    everybody = int(os.environ["WORLD_SIZE"])
    wait_for(lambda: rank == attempt and len(list(folder.glob(f"written.{attempt}.*"))) == everybody)
    sys.exit(7 + attempt)
