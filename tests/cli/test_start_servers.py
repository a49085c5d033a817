"""The command by which a server that is started by hand starts its own agent."""

import os
import subprocess
import sys

import pytest

from launcher.cli.launch.engine_commands import OWN_AGENT


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}], ids=["usual", "safe path"])
def test_no_module_that_lies_where_the_user_is_is_imported(tmp_path, variables):
    (tmp_path / "click.py").write_text("raise SystemExit('of the user')")
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("import sys\nprint('begun', file=sys.stderr)\n")
    (library / "psutil.py").write_text("")
    show = f"{OWN_AGENT[2].partition('from launcher')[0]}import psutil, launcher; print(psutil.__file__, launcher.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(library), **variables}
    done = subprocess.run(OWN_AGENT, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "of the user" not in done.stderr
    assert done.stderr.startswith("begun\n")
    found = subprocess.run(
        [sys.executable, "-c", show], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    ours, *_ = OWN_AGENT[2].split("'")[1:]
    assert found.stdout.split() == [str(library / "psutil.py"), f"{ours}/launcher/__init__.py"]
