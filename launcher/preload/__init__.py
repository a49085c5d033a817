"""The inside of the fork server and of ranks, before the program runs: preloading, failure hook, stack dumps.

Executed by path, perhaps by a Python in which tlaunch is not installed: standard library only, Python 3.10 or newer (3.6
can read `__main__.py`), nothing of the rest of tlaunch. It loads itself as `_tlaunch_preload` and imports as
little as it can, since a program may have modules of any name beside it. `__main__.py` says how it is called.
"""

import sys

LOADED_BEFORE = frozenset(sys.modules)  # noted before any sibling is imported, with what those need
