"""A command that cannot open its files names the limit."""

import resource
import subprocess
import sys

from launcher.core.resources import START


def test_the_limit_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, START, "run", "-n", "1", "--", "true"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: Too many open files\nhint: raise the limit on open files with `ulimit -n`; it is 8\n"
