"""The command by which a server that is started by hand starts its own agent."""

import pytest

from launcher.cli.launch.engine_commands import AGENT
from launcher.core.resources import PACKAGE

SHOWN_AT_THE_END = """
import atexit, sys
print("begun", file=sys.stderr)
atexit.register(lambda: (__import__("psutil"), print(*(sys.modules[name].__file__ for name in ("psutil", "launcher")))))
"""


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}], ids=["usual", "safe path"])
def test_no_module_that_lies_where_the_user_is_is_imported(launcher, variables):
    """Nor tlaunch's own package from PYTHONPATH, from which other modules are taken."""
    launcher.write("click.py", "raise SystemExit('of the user')")
    library = launcher.write("library/sitecustomize.py", SHOWN_AT_THE_END).parent
    launcher.write("library/psutil.py")
    for directory in (".", "library"):
        launcher.write(f"{directory}/launcher/__init__.py", "raise SystemExit('of the user')")
    done = launcher.ended(AGENT, env={"PYTHONPATH": str(library), **variables}, code=2)
    assert "of the user" not in done.stderr
    assert done.stderr.startswith("begun\n")
    assert done.stdout.split() == [str(library / "psutil.py"), str(PACKAGE / "__init__.py")]
