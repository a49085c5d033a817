"""Code that runs inside the fork server and inside ranks before the program: preloading, failure hook, stack dumps.

It is executed by path, possibly by a Python that does not have tlaunch installed. It therefore uses only the standard
library, needs Python 3.10 or newer (3.6 can parse `__main__.py`), and imports nothing else of tlaunch. It loads itself
as `_tlaunch_preload` and imports as little as possible, because the program may have modules of any name. `__main__.py`
documents its command line. `call_function.py` is the program of ranks that call a Python function.

To change which secrets are masked: masking.py (all outputs use this list; tests/preload/test_masking.py has a row for
    each form of secret).
To change how a forked rank ends: ending.py (output and exit code match plain Python; if that is uncertain, let CPython
    end the rank).
To change the report of a failed rank in `tlaunch exec`: headline.py (this code runs in the user's Python, and must not
    delay the rank's exit).
"""

import sys

LOADED_BEFORE = frozenset(sys.modules)  # taken before any sibling module, or what it imports, is loaded
