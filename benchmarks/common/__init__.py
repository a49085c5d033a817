"""What several benchmarks need. `make bench` runs the scripts above, nothing in here."""

import os
import tempfile

# Runs are noted in the user's state directory; no benchmark may write into a real one.
_state_home = tempfile.TemporaryDirectory(prefix="tlaunch-bench-state-")  # removed as Python ends
os.environ["XDG_STATE_HOME"] = _state_home.name
