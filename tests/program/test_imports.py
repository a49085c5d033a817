"""Find the modules that a program will import, from its source only."""

import warnings
from pathlib import Path

import pytest

from launcher.program.preload_scan import modules_to_preload, trainer_modules
from launcher.program.program_command import PythonCommand
from launcher.program.program_files import mentions_mpi
from launcher.program.source import MAX_FILES
from launcher.program.whole_program import own_files, uses_mpi


@pytest.fixture
def write(tmp_path):
    def write_all(**sources):
        """Write files by name: `package_in_INIT` is package/__init__.py."""
        for name, source in sources.items():
            path = tmp_path / f"{name.replace('INIT', '__init__').replace('MAIN', '__main__').replace('_in_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path

    return write_all


def command(kind="script", target="train.py", options=(), arguments=()):
    return PythonCommand("/bin/python", options, kind, target, arguments)


def look(cwd, *program, **environment):
    return modules_to_preload(command(*program), cwd, environment)


@pytest.mark.parametrize(("source", "expected"), [
    ("import os, json", ("json",)),
    ("from pathlib import Path\nimport torch, json.decoder", ("pathlib", "torch", "json")),
    ("import turtle, antigravity", ()),
    ("import numpy as np", ("numpy",)),
    ("import torch.nn.functional as F", ("torch", "torch.nn.functional")),
    ("from torch.distributed import init_process_group", ("torch", "torch.distributed")),
    ("import datasets, torch, transformers, torchvision, pandas", ("torch",)),
    ("'text'\nimport re\n\n\nre.compile('')", ("re",)),
    ("LR: float = 1e-3\n__version__ = '1'\nRANK = os.environ['RANK']\nimport torch", ("torch",)),
    ("async def f(x: int = 1, *rest) -> str:\n    os.environ['A'] = x\nimport torch", ("torch",)),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nimport numpy", ("typing", "numpy")),
    ("import torch, os\nos.environ['A'] = '1'\nimport numpy", ("torch",)),
    ("import torch\ntorch.cuda.set_device(0)\nimport numpy", ("torch",)),
    ("import torch\ntorch.npu.set_device(0)\nimport numpy", ("torch",)),
    ("import torch\nDEVICE = torch.accelerator.current_accelerator()\nimport numpy", ("torch",)),
    ("import torch\ntorch.backends.cudnn.benchmark = True\nimport numpy", ("torch",)),
    ("import torch\ntry:\n    import torch_npu\nexcept ImportError:\n    pass\nimport numpy", ("torch",)),
    ("import sys\nif sys.argv[1:]:\n    import torch", ()),
    ("def main():\n    import torch\nmain()", ()),
    ("import json\nif __name__ == '__main__':\n    import torch", ("json",)),
    ("import json\nimport torch\nx = (", ()),
    ("import torch\n\0", ()),
    ("\xff", ()),
])  # fmt: skip
def test_what_is_imported_above_everything_else_is_preloaded(write, source, expected):
    assert look(write(train=source)) == expected


@pytest.mark.parametrize(("source", "has_it"), [
    ("import torch\n\ndef main(m):\n    return torch.optim.SGD(m.parameters())\n", True),
    ("import torch\nfrom torch.optim import AdamW\nmain()\n", True),
    ("import torch\nmain(torch.compile)\n", True),
    ("import torch\nprint(torch.ones(1))\n", False),
    ("import os, torch\nrank = os.environ['RANK']\nmain(torch.compile, os.environ.get('A'))\n", True),
    ("import os, torch\nos.environ.setdefault('A', '1')\nmain(torch.optim)\n", False),
    ("import os, torch\nos.environ['TORCHDYNAMO_VERBOSE'] = '1'\ntorch.optim\n", False),
    ("import re, torch\nre.compile('')\n", False),
])  # fmt: skip
def test_torch_s_compiler_is_preloaded_where_it_will_be_imported(write, source, has_it):
    """Else the first optimizer of each rank would import it, unless the program may set variables that it reads."""
    assert ("torch._dynamo" in look(write(train=source))) is has_it


def test_modules_of_the_program_are_read_where_they_are_imported(write):
    cwd = write(
        train="import model\nfrom data import loader\nimport numpy",
        model="import train, random\nif __name__ == '__main__':\n    import torch.nn",
        data_in_INIT="",
        data_in_loader="from . import words\nfrom .deep.inner import x",
        data_in_words="import torch.utils.data",
        data_in_deep_in_INIT="from ..words import *",
        data_in_deep_in_inner="import json\nx = 1",
    )
    assert look(cwd) == ("torch", "torch.utils.data", "json", "numpy", "random")


@pytest.mark.parametrize("source", [
    "class A:\n    ...", "@f\ndef g(): ...", "def __getattr__(name): ...", "__path__ = []", "f()", "x = f()", "x[0] = 1",
    "x.y = 1", "x += 1", "del x", "assert x", "with x: ...", "for x in y: ...", "while x: ...", "x = [f for f in y]",
    "x = lambda: f()", "def g(x=f()): ...", "x: f() = 1", "(x := 1)", "match x:\n    case 1: ...", "if x: ...",
    "if TYPE_CHECKING:\n    ...\nelse:\n    f()", "x[0]", "x.y", "x[:0] = [f]", "x = f'{f()}'", "from y import *\nf()",
    "try:\n    from y import z\nexcept ImportError: ...", "class A(B): ...", "[f() for f in y]", "import lib.re\nlib.re.f()",
])  # fmt: skip
def test_whatever_else_a_module_does_ends_that(write, source):
    for text in (source, "import other"):
        assert look(write(train=f"import torch\n{text}\nimport numpy", other=source)) == ("torch",)


PACKAGE = {"package_in_INIT": "import numpy", "package_in_MAIN": "import torch", "package_in_run": "x = 1"}
SETTINGS = "import settings\nimport torch"
ON_PATH = {"train": "import model", "lib_in_model": "import torch"}


@pytest.mark.parametrize(("files", "program", "environment", "expected"), [
    # What is imported after a change of the environment may look at it, wherever the change is.
    ({"train": SETTINGS, "settings": "import os, json\nos.environ['A'] = '1'"}, (), {}, ("json",)),
    ({"train": SETTINGS, "settings": "def main():\n    os.environ['A'] = '1'"}, (), {}, ("torch",)),
    # The program that its module imports runs once more: its changes come before what that module imports next.
    ({"train": "import model\nos.environ['A'] = '1'\nimport numpy", "model": "import json, train, torch"}, (), {},
     ("json",)),
    # A module of the program hides one of the library, and what is imported after it may find the wrong one, too.
    ({"train": "import json, random", "random": "import numpy"}, (), {}, ("json",)),
    ({"train": "import torch, numpy", "torch": "import json"}, (), {}, ("json", "numpy")),
    # `-m package` and a directory begin at `__main__`; `-m package.module` runs the package first.
    (PACKAGE, ("module", "package"), {}, ("numpy", "torch")),
    (PACKAGE, ("script", "package"), {}, ("torch",)),
    (PACKAGE, ("module", "package.run"), {}, ("numpy",)),
    ({"package_in_INIT": "import os\nos.environ['A'] = '1'", "package_in_run": "import numpy"}, ("module", "package.run"),
     {}, ()),
    # Modules of the command line's code are in the working directory.
    ({"model": "import torch"}, ("code", "import model"), {}, ("torch",)),
    ({"model": "import torch"}, ("code", "import model", ("-I",)), {}, ()),
    # PYTHONPATH is searched unless an option forbids it.
    (ON_PATH, (), {}, ()),
    (ON_PATH, (), {"PYTHONPATH": "lib"}, ("torch",)),
    (ON_PATH, ("script", "train.py", ("-E",)), {"PYTHONPATH": "lib"}, ()),
    # Imports that shall be seen are done by ranks, each of which shows its own.
    ({"train": "import torch"}, (), {"PYTHONPROFILEIMPORTTIME": "1"}, ()),
    ({"train": "import torch"}, (), {"PYTHONVERBOSE": "1"}, ()),
    # A program that is missing needs nothing; the bundled trainer has its own list.
    ({}, (), {}, ()),
    ({}, ("module", "missing"), {}, ()),
    ({}, ("module", "a.b.c"), {}, ()),
    ({}, ("module", "launcher.trainer"), {}, trainer_modules(())),
])  # fmt: skip
def test_what_is_imported_follows_from_the_files_the_command_and_the_environment(
    write, files, program, environment, expected
):
    assert look(write(**files), *program, **environment) == expected


def test_nothing_is_said_of_the_program(write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look(write(train="import torch\nif 1 is 1:\n    '\\d'")) == ("torch",)


def test_reading_is_bounded(write):
    chain = {f"m{index}": f"import torch, m{index + 1}, numpy" for index in range(MAX_FILES + 50)}
    assert look(write(train="import m0", **chain)) == ("torch",)
    assert len(own_files(command(), write(), {})) == MAX_FILES


@pytest.mark.parametrize("addition", [
    "sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))",
    "sys.path.append('lib')",
    "sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'lib'))",
    "sys.path.insert(0, str(Path(__file__).parents[1] / 'lib'))",
    "HERE = os.path.dirname(os.path.realpath(__file__))\nif HERE not in sys.path:\n    sys.path.insert(1, HERE + '/../lib')",
])  # fmt: skip
def test_the_program_s_files_are_found_where_it_says(write, addition):
    source = f"import inside\nfrom pathlib import Path\n{addition}\n"
    cwd = write(program_in_train=source, lib_in_inside="import deeper", lib_in_deeper="from mpi4py import MPI")
    names = {path.name for path in own_files(command(target="program/train.py"), cwd, {})}
    assert names == {"train.py", "inside.py", "deeper.py"}
    assert uses_mpi(command(target="program/train.py"), cwd, {})


MPI_PACKAGE = {"package_in_INIT": "", "package_in_MAIN": "from mpi4py import MPI"}
MPI_MODULE = {"lib_in_mpi4py_in_INIT": "", "lib_in_mpi4py_in_MPI": ""}


@pytest.mark.parametrize(("sources", "program", "expected"), [
    ({"train": "from mpi4py import MPI"}, (), True),
    ({"train": "import mpi4py.MPI as MPI"}, (), True),
    ({"train": "def main():\n    from mpi4py import MPI"}, (), True),
    ({"train": "import numpy\nif use_mpi:\n    import mpi4py"}, (), True),
    ({"train": "from parts import talk", "parts_in_INIT": "", "parts_in_talk": "from mpi4py import MPI"}, (), True),
    ({"train": "import broken\nimport mpi4py", "broken": "def"}, (), True),
    ({"train": "import torch, socket"}, (), False),
    ({"train": "x = 'import mpi4py'"}, (), False),
    ({"train": "from . import mpi4py\nimport mpi4py", "mpi4py": "x = 1"}, (), False),
    ({"train": "def"}, (), None),
    # On the path that the environment gives, as a cluster's modules do it: no module of the program's own for that.
    ({"train": "from mpi4py import MPI", **MPI_MODULE}, (), True),
    (MPI_PACKAGE, ("module", "package"), True),
    ({}, ("code", "import mpi4py"), True),
    ({}, ("module", "mpi4py", (), ("train.py",)), True),
    # An installed package is where only Python would find it; the standard library uses none.
    ({"other": "x = 1"}, ("script", "none.py"), None),
    ({"other": "x = 1"}, ("module", "installed.train"), None),
    ({"other": "x = 1"}, ("module", "http.server"), False),
    ({"other": "x = 1"}, ("module", "launcher.trainer"), False),
])  # fmt: skip
def test_programs_that_use_mpi(write, sources, program, expected):
    assert uses_mpi(command(*program), write(**sources), {"PYTHONPATH": "lib"}) is expected


@pytest.mark.parametrize(("kind", "target", "expected"), [
    ("script", "train.py", True), ("script", "parts/other.py", False), ("script", "none.py", False),
    ("module", "train", True), ("module", "parts", False), ("module", "mpi4py.run", True),
    ("code", "import mpi4py", True), ("code", "pass", False),
])  # fmt: skip
def test_programs_whose_own_file_speaks_of_mpi(write, kind, target, expected):
    """Modules that it imports are not looked into: every rank asks, not one for all."""
    cwd = write(
        train="from mpi4py import MPI", parts_in_MAIN="import train", parts_in_INIT="", parts_in_other="import train"
    )
    assert mentions_mpi(command(kind, target), cwd, {}) is expected


def test_the_bundled_trainer_is_no_program_of_mpi():
    assert not uses_mpi(command("module", "launcher.trainer"), Path(__file__).parents[2], {})
