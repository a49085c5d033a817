"""Shared code of the benchmarks. `make bench` runs only the scripts in the parent directory."""

import os
import tempfile

# Runs are noted in the user's state directory; no benchmark may write into a real one.
_state_home = tempfile.TemporaryDirectory(prefix="tlaunch-bench-state-")  # removed as Python ends
os.environ["XDG_STATE_HOME"] = _state_home.name
