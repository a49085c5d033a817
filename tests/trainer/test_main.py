"""What `python -m launcher.trainer` does to its process before it trains."""

import ctypes
import os
import subprocess
import sys

import pytest

from launcher.trainer.memory import keep_freed_memory

# Prints the pages that one of several equal steps takes from the system: the least, since pieces of the heap may be too small.
STEPS = """
import ctypes
import resource
import torch
from launcher.trainer.memory import keep_freed_memory

def pages_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(2 << 20) for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

PR_SET_THP_DISABLE = 41  # else a tensor may take few pages, which are huge
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
torch.set_num_threads(1)
keep_freed_memory()
print(min(pages_of_a_step() for _ in range(8)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
@pytest.mark.parametrize(
    ("variables", "keeps"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, False)], ids=["", "set"]
)
def test_freed_memory_is_kept_unless_the_environment_says_how(variables, keeps):
    """80 MiB of tensors, again and again, take none of 20,000 pages from the system anew."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, env={**others, **variables}
    )
    assert (int(done.stdout) < 1000) == keeps


class OlderGlibc:
    """Takes thresholds of mmap up to a size, as older versions of glibc do."""

    def __init__(self, most_bytes):
        self.most_bytes, self.taken = most_bytes, {}

    def mallopt(self, option, size):
        is_taken = option != -3 or size <= self.most_bytes
        if is_taken:
            self.taken[option] = size
        return int(is_taken)


@pytest.mark.parametrize(
    ("most_bytes", "taken"), [(32 << 20, {-3: 32 << 20, -1: 1 << 30}), (0, {})], ids=["smaller", "none"]
)
def test_glibc_keeps_its_own_thresholds_if_it_takes_none_of_ours(most_bytes, taken, monkeypatch):
    """Any that is set ends its choice of the others, which would take a step more time than before."""
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    libc = OlderGlibc(most_bytes)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: libc)
    keep_freed_memory()
    assert libc.taken == taken
