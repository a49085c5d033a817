"""Event files, as TensorBoard itself reads them."""

import os
import subprocess
import sys
import threading

from launcher.trainer.telemetry.event_file import EventFile, _check

# What is imported costs: as if these were installed, and noticed.
STRANGERS = ("tensorflow", "boto3", "botocore", "fsspec")
WRITES = """
import sys
import launcher.trainer.programs.transformer
assert not {name for name in sys.modules if name.startswith(("tensorboard", "google.protobuf"))}
before = set(sys.modules)
from launcher.trainer.telemetry.event_file import EventFile
from pathlib import Path
EventFile(Path(sys.argv[1]), attempt=0, purge_step=None).scalars(1, 1, {"loss": 1.0})
assert "tensorboard" in sys.modules
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_scalars_are_read_by_tensorboard(tmp_path, board):
    file = EventFile(tmp_path / "board", attempt=0, purge_step=None)
    file.scalars(1_500_000_000, 1, {"loss/train": 7.5, "memory_bytes": 2.0**40})
    file.scalars(2_500_000_000, 2, {"loss/train": float("inf")})
    assert board(tmp_path / "board") == {
        "loss/train": [(1.5, 1, 7.5), (2.5, 2, float("inf"))],
        "memory_bytes": [(1.5, 1, 2.0**40)],
    }


def test_the_check_is_that_of_the_standard():
    """RFC 3720, B.4: 32 bytes of zero have the CRC-32C 8a9136aa; the mask turns it by 15 bits and adds a constant."""
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _check(bytes(32)) == masked.to_bytes(4, "little")


def test_each_record_is_in_the_file_at_once(tmp_path, board):
    threads = {*threading.enumerate()}
    file = EventFile(tmp_path / "board", attempt=0, purge_step=None)
    for step in range(3):
        file.scalars(step, step, {"loss": 1.0})
        assert len(board(tmp_path / "board")["loss"]) == step + 1
    assert {*threading.enumerate()} <= threads


def test_little_is_imported_and_late(tmp_path):
    """Nothing before the first file, so not in a process that is forked for ranks; never TensorFlow or what it may use."""
    for name in STRANGERS:
        (tmp_path / "installed" / name).mkdir(parents=True)
        (tmp_path / "installed" / name / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", WRITES, tmp_path / "board"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'installed'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tensorboard" in done.stdout
    assert not {*done.stdout.split()} & {*STRANGERS}
