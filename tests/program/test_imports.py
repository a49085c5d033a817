"""What a program will import, found in its text alone."""

import textwrap
import warnings
from pathlib import Path

import pytest

from launcher.program.command import PythonCommand
from launcher.program.files import mentions_mpi
from launcher.program.imports import MAX_FILES, TRAINER_MODULES, modules_to_preload, uses_mpi


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
    "import os, torch\nos.environ['A'] = 'x'",
    "import os, torch\ndef main():\n    os.environ['A'] = '1'\nif __name__ == '__main__':\n    main()",
    "import os, helper\nprint(os.environ['A'], os.environ.get('B'))\nimport torch",
    "import helper, torch\nhelper.main()",
    "'text'\nfrom helper import main\nLR: float = 1e-3\nclass A:\n    x = 1\n\ndef f(): main()\nimport torch\nf()",
    "import logging, helper\nlog = logging.getLogger(__name__)\nimport torch\nhelper.main()",
    "import os\nos.environ['MASTER_ADDR'] = 'localhost'\nos.environ.setdefault('MASTER_PORT', '1')\nimport torch",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nimport helper, torch\nhelper.main()",
    "import os\nsetup(dict(os.environ), *[x for x in os.environ], {**os.environ}, os.environ.copy())\nimport torch",
])  # fmt: skip
def test_changing_it_later_does_not(write, source):
    """Nor does reading it, nor what no import looks at."""
    helper = "import os\ndef main():\n    os.environ['A'] = '1'\nif __name__ == '__main__':\n    main()"
    found = look(write(train=source, helper=helper))
    assert [name for name in found if name not in {"logging", "dataclasses"}] == ["torch"]


def test_what_is_imported_before_a_change_is_found(write):
    """And only that: what a function imports may come after the change that another makes."""
    source = "import torch, os\ndef main():\n    os.environ['A'] = '1'\n    import numpy\n    torch.optim.SGD\nmain()"
    assert look(write(train=source)) == ("torch",)
    assert look(write(train=source.replace("'A'", "'RANK'"))) == ("numpy", "torch", "torch._dynamo")


def test_the_tutorial_of_data_parallel_training_is_preloaded(write):
    """It sets MASTER_ADDR in a function that main calls; so do many programs."""
    source = """
        import os, sys, tempfile
        import torch
        import torch.distributed as dist
        import torch.nn as nn
        import torch.optim as optim
        import torch.multiprocessing as mp
        from torch.nn.parallel import DistributedDataParallel as DDP

        def setup(rank, world_size):
            os.environ['MASTER_ADDR'] = 'localhost'
            os.environ['MASTER_PORT'] = '12355'
            dist.init_process_group("gloo", rank=rank, world_size=world_size)

        class ToyModel(nn.Module):
            def __init__(self):
                super().__init__()
                self.net1 = nn.Linear(10, 10)

        def demo(rank, world_size):
            setup(rank, world_size)
            optimizer = optim.SGD(ToyModel().parameters(), lr=0.001)

        if __name__ == "__main__":
            mp.spawn(demo, args=(2,), nprocs=2)
    """
    found = look(write(train=textwrap.dedent(source)))
    assert {"tempfile", "torch", "torch.nn.parallel", "torch.distributed", "torch._dynamo"} <= set(found)
    assert "torch" in look(write(train=textwrap.dedent(source).replace("MASTER_ADDR", "OTHER")))


@pytest.mark.parametrize("addition", [
    "sys.path.insert(0, os.path.dirname(__file__))",
    "sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))",
    "sys.path.append('lib')",
    "sys.path.insert(0, str(Path(__file__).resolve().parent / 'lib'))",
    "sys.path.insert(0, str(Path(__file__).parents[0]))",
    "HERE = os.path.dirname(os.path.realpath(__file__))\nif HERE not in sys.path:\n    sys.path.insert(1, HERE)",
])  # fmt: skip
def test_a_directory_without_such_names_may_be_searched_first(write, addition):
    """Its modules are read like all others."""
    source = f"import os, sys\nfrom pathlib import Path\n{addition}\nimport beside, torch\nos.environ['A'] = '1'"
    cwd = write(program_in_train=source, program_in_beside="import numpy", lib_in_other="x = 1")
    assert look(cwd, target="program/train.py")[1:] == ("numpy", "torch")


@pytest.mark.parametrize("method", ["insert(0, 'lib')", "append('lib')"])
def test_modules_of_an_added_directory_are_read(write, method):
    """As those beside the program."""
    source = f"import sys\nsys.path.{method}\nimport inside, torch"
    assert look(write(train=source, lib_in_inside="import numpy")) == ("numpy", "torch")
    assert look(write(train=source, lib_in_inside="import os\nos.environ['A'] = '1'")) == ()


@pytest.mark.parametrize(("directory", "expected"), [
    ("'lib'", ()), ("'lib' + x", ()), ("unknown", ()), ("os.path.join(__file__, '..', *x)", ()), ("'empty'", ("torch",)),
])  # fmt: skip
def test_a_directory_that_may_hold_such_names_is_unclear(write, directory, expected):
    """It holds one that torch itself imports, or cannot be worked out."""
    source = f"import os, sys\nsys.path.insert(0, {directory})\nimport torch"
    assert look(write(train=source, lib_in_typing_extensions="")) == expected


def test_a_heavy_module_of_the_program_is_its_own(write):
    """Wherever on the path it is."""
    assert look(write(train="import torch, numpy", torch="import json")) == ("json", "numpy")


def test_functions_of_a_module_that_hides_one_of_the_library_may_do_anything(write):
    """Whatever they are called."""
    source = "import logging\nlogging.getLogger('x')\nimport torch"
    assert look(write(train=source, other="import os\nos.environ['A'] = '1'")) == ("logging", "torch")
    changing = "import os\ndef getLogger(name):\n    os.environ['A'] = '1'"
    assert look(write(train=source, logging=changing)) == ()


@pytest.mark.parametrize("source", [
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    "import typing as t\nif t.TYPE_CHECKING:\n    import torch\nelse:\n    torch = None",
    "import helper",
])  # fmt: skip
def test_what_never_runs_is_not_imported(write, source):
    """Imports for type checkers, and a module's own `__main__` part."""
    found = look(write(train=source, helper="if __name__ == '__main__':\n    import torch"))
    assert "torch" not in found


def test_nothing_is_said_of_the_program(write):
    """Python tells of its doubtful syntax itself, when it runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look(write(train="import torch\nif 1 is 1:\n    '\\d'")) == ("torch",)


@pytest.mark.parametrize("name", ["PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE"])
def test_imports_that_shall_be_seen_are_done_by_ranks(write, name):
    """Each shows its own."""
    assert look(write(train="import torch"), environment={name: "1"}) == ()


@pytest.mark.parametrize("source", ["import torch\nx = (", "import torch\n\0", "\xff"])
def test_what_cannot_be_read_needs_nothing(write, source):
    """Python will say what is wrong with it."""
    assert look(write(train=source)) == ()


def test_missing_programs_need_nothing(tmp_path):
    """Scripts and modules alike."""
    assert look(tmp_path) == look(tmp_path, "module", "missing") == look(tmp_path, "module", "a.b.c") == ()


def test_reading_is_bounded(write):
    """However many modules a project has."""
    chain = {f"m{index}": f"import torch, m{index + 1}, random" for index in range(MAX_FILES + 50)}
    chain[f"m{MAX_FILES + 40}"] = "import numpy"
    assert look(write(train="import m0", **chain)) == ("torch",)  # what is not read may do anything


def test_the_bundled_trainer_has_its_own_list(tmp_path):
    """Known, not looked for."""
    assert look(tmp_path, "module", "launcher.trainer") == TRAINER_MODULES


@pytest.mark.parametrize(("sources", "expected"), [
    ({"train": "from mpi4py import MPI"}, True),
    ({"train": "import mpi4py.MPI as MPI"}, True),
    ({"train": "def main():\n    from mpi4py import MPI"}, True),
    ({"train": "import numpy\nif use_mpi:\n    import mpi4py"}, True),
    ({"train": "from parts import talk", "parts_in_INIT": "", "parts_in_talk": "from mpi4py import MPI"}, True),
    ({"train": "import broken\nimport mpi4py", "broken": "def"}, True),
    ({"train": "import torch, socket"}, False),
    ({"train": "x = 'import mpi4py'"}, False),
    ({"train": "from . import mpi4py\nimport mpi4py", "mpi4py": "x = 1"}, False),
    ({"train": "def"}, None),
])  # fmt: skip
def test_programs_that_use_mpi(write, sources, expected):
    """By mpi4py, wherever the program or a module of its own imports it; not what only has its name."""
    assert uses_mpi(PythonCommand("/bin/python", (), "script", "train.py", ()), write(**sources), {}) is expected


def test_mpi4py_may_be_on_the_path_that_the_environment_gives(write):
    """As a cluster's modules do it; it is no module of the program's own for that."""
    cwd = write(train="from mpi4py import MPI", lib_in_mpi4py_in_INIT="", lib_in_mpi4py_in_MPI="")
    assert uses_mpi(PythonCommand("/bin/python", (), "script", "train.py", ()), cwd, {"PYTHONPATH": "lib"})


def test_mpi_of_a_module_and_of_code(write):
    """As for preloading."""
    cwd = write(package_in_INIT="", package_in_MAIN="from mpi4py import MPI")
    assert uses_mpi(PythonCommand("/bin/python", (), "module", "package", ()), cwd, {})
    assert uses_mpi(PythonCommand("/bin/python", (), "code", "import mpi4py", ()), cwd, {})
    assert uses_mpi(PythonCommand("/bin/python", (), "module", "mpi4py", ("train.py",)), cwd, {})


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("script", "none.py", None),
        ("module", "installed.train", None),
        ("module", "http.server", False),
        ("module", "launcher.trainer", False),
    ],
)
def test_a_program_that_cannot_be_read_may_use_mpi(write, kind, target, expected):
    """An installed package is where only Python would find it; the standard library uses none."""
    cwd = write(other="x = 1")
    assert uses_mpi(PythonCommand("/bin/python", (), kind, target, ()), cwd, {}) is expected


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("script", "train.py", True),
        ("script", "parts/other.py", False),
        ("script", "none.py", False),
        ("module", "train", True),
        ("module", "parts", False),
        ("module", "mpi4py.run", True),
        ("code", "import mpi4py", True),
        ("code", "pass", False),
    ],
)
def test_programs_whose_own_file_speaks_of_mpi(write, kind, target, expected):
    """Modules that it imports are not looked into: every rank asks, not one for all."""
    cwd = write(
        train="from mpi4py import MPI", parts_in_MAIN="import train", parts_in_INIT="", parts_in_other="import train"
    )
    assert mentions_mpi(PythonCommand("/bin/python", (), kind, target, ()), cwd, {}) is expected


def test_the_bundled_trainer_is_no_program_of_mpi():
    """It meets by MPI only where an engine has started it; even read from its own sources."""
    root = Path(__file__).parents[2]
    assert not uses_mpi(PythonCommand("/bin/python", (), "module", "launcher.trainer", ()), root, {})
