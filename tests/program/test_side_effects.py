"""What a program finds when it imports is the same with and without preloading."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.program.command import PythonCommand
from launcher.program.import_scan import modules_to_preload

PATIENCE_S = 120
# numpy looks at NUMPY_MADVISE_HUGEPAGE when it is imported, and remembers.
SHOW = "import numpy; print(numpy.__file__, numpy._core.multiarray._set_madvise_hugepage(True), flush=True)"
SET = "import os\nos.environ['NUMPY_MADVISE_HUGEPAGE'] = '0'"
IN_FUNCTION = "import os\ndef setup(*_, **__):\n    os.environ['NUMPY_MADVISE_HUGEPAGE'] = '0'\n"
FILES = {
    "helper.py": IN_FUNCTION,
    "sets.py": SET,
    "instance.py": IN_FUNCTION + "class Config:\n    x = property(setup)\nconfig = Config()",
    "hook.py": IN_FUNCTION + "class Base:\n    def __init_subclass__(cls):\n        setup()\n",
    "generic.py": IN_FUNCTION + "class Box:\n    def __class_getitem__(cls, item):\n        setup()\n",
    "lazy.py": IN_FUNCTION + "def __getattr__(name):\n    setup()\n    raise AttributeError(name)\n",
    "star.py": IN_FUNCTION + "len = setup\n",
    "package/__init__.py": SET,
    "package/inner.py": SHOW,
    "lib/__init__.py": "",
    "lib/argparse.py": IN_FUNCTION + "ArgumentParser = setup\n",
}
CHANGES = {
    "a function of a helper": "from helper import setup\nsetup()\nimport numpy",
    "another name": "import os\nenv = os.environ\nenv['NUMPY_MADVISE_HUGEPAGE'] = '0'\nimport numpy",
    "a constructor": IN_FUNCTION + "class Setup:\n    def __init__(self):\n        setup()\nSetup()\nimport numpy",
    "in a module": "import sets, numpy",
    "a decorator": "from helper import setup\n@setup\ndef f(): ...\nimport numpy",
    "a base": "from hook import Base\nclass A(Base): ...\nimport numpy",
    "an index": "from generic import Box\nBox[int]\nimport numpy",
    "a module's attribute": "try:\n    from lazy import value\nexcept ImportError:\n    pass\nimport numpy",
    "a property": "import instance\ninstance.config.x\nimport numpy",
    "a default": "from helper import setup\ndef f(x=setup()): ...\nimport numpy",
    "a text": "from helper import setup\nx = f'{setup()}'\nimport numpy",
    "a condition": "from helper import setup\nif setup() is None:\n    import numpy",
    "a comprehension": "from helper import setup\n[setup() for _ in (1,)]\nimport numpy",
    "a lambda": "from helper import setup\nf = lambda: setup()\nf()\nimport numpy",
    "a star": "from star import *\nlen()\nimport numpy",
    "a context": "import contextlib, helper\n@contextlib.contextmanager\ndef c():\n    helper.setup()\n    yield\n"
                 "with c():\n    import numpy",
    "merged": "from os import environ\nenviron |= {'NUMPY_MADVISE_HUGEPAGE': '0'}\nimport numpy",
    "by its method": "import os\nos.environ.__setitem__('NUMPY_MADVISE_HUGEPAGE', '0')\nimport numpy",
    "a function of a library's name": "import lib.argparse\nfrom lib import argparse\nargparse.ArgumentParser()\nimport numpy",
    "the path": "import sys\nsys.path.insert(0, 'shadow')\nimport numpy",
    "the path, computed": "import sys, os\nsys.path[:0] = [os.path.join(os.path.dirname(__file__), 'shadow')]\nimport numpy",
    "loaded modules": "import sys, types\nsys.modules['numpy'] = types.ModuleType('numpy')\nimport numpy",
    "finders": "import sys\nfrom lib import Finder\nsys.meta_path.insert(0, Finder)\nimport numpy",
}  # fmt: skip


def write_program(directory, source):
    for name, text in {**FILES, "train.py": f"{source}\n{SHOW}\n"}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_nothing_is_preloaded_below_a_change(tmp_path, source):
    write_program(tmp_path, source)
    command = PythonCommand(sys.executable, (), "script", "train.py", ())
    assert "numpy" not in modules_to_preload(command, tmp_path, {})


def test_nothing_is_preloaded_below_a_change_in_the_package_of_a_module(tmp_path):
    """`python -m package.inner` runs the `__init__` before it."""
    write_program(tmp_path, "")
    command = PythonCommand(sys.executable, (), "module", "package.inner", ())
    assert "numpy" not in modules_to_preload(command, tmp_path, {})


def test_a_change_before_an_import_is_seen_by_it(tmp_path):
    """A rank prints what Python alone prints, unless numpy is preloaded all the same."""
    numpy = pytest.importorskip("numpy")
    if not hasattr(numpy._core.multiarray, "_set_madvise_hugepage"):
        pytest.skip("another numpy")
    write_program(tmp_path, CHANGES["a function of a helper"])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**inherited, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}

    def printed_by(*argv):
        command = [sys.executable, *argv]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, timeout=PATIENCE_S)

    def printed_by_rank(*options):
        printed_by(
            "-m", "launcher", "run", "--devices", "1", "--name", "run", *options, "--", sys.executable, "train.py"
        )
        return (tmp_path / "runs/latest/device0/train.log").read_bytes()

    expected = printed_by("train.py")
    assert printed_by_rank() == expected
    assert printed_by_rank("--preload", "numpy") != expected
