"""What `python -m launcher.trainer` does to its process before it trains."""

import os
import subprocess
import sys

import pytest

# Prints the pages that a later step of equal size takes from the system.
STEPS = """
import resource
import torch
from launcher.trainer.__main__ import keep_freed_memory

def pages_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.ones(2 << 20) for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
keep_freed_memory()
for _ in range(3):
    pages = pages_of_a_step()
print(pages)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
@pytest.mark.parametrize(("variables", "keeps"), [({}, True), ({"MALLOC_ARENA_MAX": "2"}, False)], ids=["", "set"])
def test_freed_memory_is_kept_unless_the_environment_says_how(variables, keeps):
    """80 MiB of tensors, again and again, take none of 20,000 pages from the system anew."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, env={**others, **variables}
    )

    assert (int(done.stdout) < 1000) == keeps
