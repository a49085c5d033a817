"""The command by which a server that is started by hand starts its own agent."""

import pytest

from launcher.cli.launch.engine_commands import OWN_AGENT


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}], ids=["usual", "safe path"])
def test_no_module_that_lies_where_the_user_is_is_imported(launcher, variables):
    launcher.write("click.py", "raise SystemExit('of the user')")
    library = launcher.write("library/sitecustomize.py", "import sys\nprint('begun', file=sys.stderr)\n").parent
    launcher.write("library/psutil.py")
    environment = {"PYTHONPATH": str(library), **variables}
    done = launcher.ended(OWN_AGENT, env=environment, code=2)
    assert "of the user" not in done.stderr
    assert done.stderr.startswith("begun\n")
    found = f"{OWN_AGENT[2].partition('from launcher')[0]}import psutil, launcher; print(psutil.__file__, launcher.__file__)"
    ours, *_ = OWN_AGENT[2].split("'")[1:]
    assert launcher.python(found, env=environment).stdout.split() == [
        str(library / "psutil.py"), f"{ours}/launcher/__init__.py",
    ]  # fmt: skip
