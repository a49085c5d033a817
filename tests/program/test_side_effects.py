"""A program's imports have the same results with and without preloading."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 120
# numpy looks at NUMPY_MADVISE_HUGEPAGE when it is imported, and remembers.
HELPER = "import os\ndef setup():\n    os.environ['NUMPY_MADVISE_HUGEPAGE'] = '0'\n"
PROGRAM = """\
from helper import setup
setup()
import numpy
print(numpy._core.multiarray._set_madvise_hugepage(True), flush=True)
"""


def test_a_change_before_an_import_is_seen_by_it(tmp_path):
    numpy = pytest.importorskip("numpy")
    if not hasattr(numpy._core.multiarray, "_set_madvise_hugepage"):
        pytest.skip("another numpy")
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(PROGRAM)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**inherited, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}

    def printed_by(*argv):
        command = [sys.executable, *argv]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, timeout=PATIENCE_S)

    def printed_by_rank(*options):
        printed_by(
            "-m", "launcher", "run", "--devices", "1", "--name", "run", *options, "--", sys.executable, "train.py"
        )
        return (tmp_path / "runs/latest/device0/train.log").read_bytes()

    expected = printed_by("train.py")
    assert printed_by_rank() == expected
    assert printed_by_rank("--preload", "numpy") != expected
