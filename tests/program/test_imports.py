"""What a program will import, found in its text alone."""

import pytest

from launcher.program.command import PythonCommand
from launcher.program.imports import MOST_FILES, TRAINER_MODULES, modules_to_preload


@pytest.fixture
def write(tmp_path):
    def write_all(**sources):
        """Files by name: `package_in_INIT` is package/__init__.py."""
        for name, source in sources.items():
            path = tmp_path / f"{name.replace('INIT', '__init__').replace('MAIN', '__main__').replace('_in_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path

    return write_all


def look(cwd, kind="script", target="train.py", *, options=(), environment=None):
    return modules_to_preload(PythonCommand("/bin/python", options, kind, target, ()), cwd, environment or {})


@pytest.mark.parametrize(("source", "expected"), [
    ("import os, json", ("json",)),
    ("from pathlib import Path\nimport torch, json.decoder", ("json", "pathlib", "torch")),
    ("import turtle, antigravity", ()),
    ("import numpy as np", ("numpy",)),
    ("import torch.nn.functional as F", ("torch", "torch.nn.functional")),
    ("from torch.distributed import init_process_group", ("torch", "torch.distributed")),
    ("def f():\n    import torch", ("torch",)),
    ("try:\n    import torch\nexcept ImportError:\n    torch = None", ("torch",)),
    ("import torch\ntorch.optim.SGD", ("torch", "torch._dynamo")),
    ("from torch import nn, optim", ("torch", "torch._dynamo")),
    ("from torch.optim.lr_scheduler import StepLR", ("torch", "torch.optim.lr_scheduler", "torch._dynamo")),
    ("import torch\n@torch.compile\ndef f(): ...", ("torch", "torch._dynamo")),
    ("import transformers, torchvision, pandas", ()),
    ("import re\nre.compile('')", ("re",)),
])  # fmt: skip
def test_imports_of_a_script(write, source, expected):
    """Anywhere in the code; only those that may be imported before a fork."""
    assert look(write(train=source)) == expected


def test_local_modules_are_read_too(write):
    """Beside the script, in packages, by relative imports, in circles."""
    cwd = write(
        train="import model\nfrom data import loader",
        model="import train, torch",
        data_in_INIT="",
        data_in_loader="from . import words\nfrom .deep.inner import x",
        data_in_words="import torch.utils.data",
        data_in_deep_in_INIT="from ..words import *",
        data_in_deep_in_inner="import numpy.random\nx = 1",
    )
    assert look(cwd) == ("numpy", "numpy.random", "torch", "torch.utils.data")


def test_a_module_of_the_program_hides_one_of_the_library(write):
    """It is read, like every other of the program's own, and never imported."""
    assert look(write(train="import json, random", json="import numpy")) == ("random", "numpy")


def test_modules_and_directories(write):
    """`-m package` and a directory begin at `__main__`; `-m package.module` runs the package first."""
    cwd = write(package_in_INIT="import numpy", package_in_MAIN="import torch", package_in_run="x = 1")
    assert look(cwd, "module", "package") == ("numpy", "torch")
    assert look(cwd, "script", "package") == ("torch",)
    assert look(cwd, "module", "package.run") == ("numpy",)


def test_code_of_the_command_line(write):
    """Its modules are in the working directory."""
    cwd = write(model="import torch")
    assert look(cwd, "code", "import model") == ("torch",)
    assert look(cwd, "code", "import model", options=("-I",)) == ()


def test_python_path_is_searched(write, tmp_path):
    """As Python does, unless it is told not to."""
    cwd = write(train="import model", lib_in_model="import torch")
    assert look(cwd) == ()
    assert look(cwd, environment={"PYTHONPATH": "lib"}) == ("torch",)
    assert look(cwd, environment={"PYTHONPATH": "lib"}, options=("-E",)) == ()


@pytest.mark.parametrize("source", [
    "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch",
    "from os import environ\nenviron.setdefault('A', 'b')\nimport torch",
    "import os\nif True:\n    os.environ.update(A='1')\nimport torch",
    "import os\nos.putenv('A', '1')\nimport torch",
    "import os\ndel os.environ['A']\nimport torch",
    "import os\nos.environ |= {'A': '1'}\nimport torch",
    "import os\ndef prepare():\n    os.environ['A'] = '1'\nprepare()\nimport torch",
    "import os\ndef main():\n    os.environ['A'] = '1'\n    import torch\nmain()",
    "from dotenv import load_dotenv\nload_dotenv()\nimport torch",
    "import settings\nimport torch",
])  # fmt: skip
def test_changing_the_environment_first_forbids_it(write, source):
    """What is imported after it may look at it, so nothing is imported before."""
    assert look(write(train=source, settings="import os\nos.environ['A'] = '1'")) == ()


@pytest.mark.parametrize("source", [
    "import os, torch\nos.environ['MASTER_ADDR'] = 'x'",
    "import os, torch\ndef main():\n    os.environ['A'] = '1'\nif __name__ == '__main__':\n    main()",
    "import os, helper\nprint(os.environ['A'], os.environ.get('B'))\nimport torch",
])  # fmt: skip
def test_changing_it_later_does_not(write, source):
    """Nor does reading it."""
    helper = "import os\ndef main():\n    os.environ['A'] = '1'"
    assert look(write(train=source, helper=helper)) == ("torch",)


@pytest.mark.parametrize("source", ["import torch\nx = (", "import torch\n\0", "\xff"])
def test_what_cannot_be_read_needs_nothing(write, source):
    """Python will say what is wrong with it."""
    assert look(write(train=source)) == ()


def test_missing_programs_need_nothing(tmp_path):
    """Scripts and modules alike."""
    assert look(tmp_path) == look(tmp_path, "module", "missing") == look(tmp_path, "module", "a.b.c") == ()


def test_reading_is_bounded(write):
    """However many modules a project has."""
    chain = {f"m{index}": f"import m{index + 1}, torch" for index in range(MOST_FILES + 50)}
    chain[f"m{MOST_FILES + 40}"] = "import numpy"
    assert look(write(train="import m0", **chain)) == ("torch",)


def test_the_bundled_trainer_has_its_own_list(tmp_path):
    """Known, not looked for."""
    assert look(tmp_path, "module", "launcher.trainer") == TRAINER_MODULES
