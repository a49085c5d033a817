"""What runs inside a rank's own Python before its program does: failure hook, stack dumps, preloading.

Executed by path, perhaps by a Python in which tlaunch is not installed: standard library only, syntax of Python 3.8
(of `__main__.py`: any), nothing of the rest of tlaunch. It loads itself as `_tlaunch_bootstrap` and imports as little as it can, since a program
may have modules of any name beside it. `__main__.py` tells how it is called.
"""

import sys

LOADED_BEFORE = frozenset(sys.modules)  # noted before any sibling is imported, with what those need
