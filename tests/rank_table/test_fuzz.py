"""A short run of the benchmark that reads damaged documents; the long one is `python benchmarks/fuzz_tables.py`."""

import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_no_damaged_document_crashes_hangs_or_eats_memory(tmp_path):
    argv = [sys.executable, BENCHMARKS / "fuzz_tables.py", "--documents", "1000", "--seed", "7"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = re.match(r"1000 documents .*; (\d+) valid, (\d+) different codes", done.stdout)
    assert int(figures[1]) > 50
    assert int(figures[2]) > 60
