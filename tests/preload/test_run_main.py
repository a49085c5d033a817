"""A program that is run through the bootstrap, or forked from a fork server, is what Python alone makes of it."""

import math
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
FACTS = (PROGRAMS / "preload_facts.py").read_text()
# What both ways import for themselves, or what a process forked before knows of it.
OWN_MODULES = {
    "__future__", "_ctypes", "atexit", "encodings.ascii", "_json", "_struct", "ctypes", "ctypes._endian", "errno", "faulthandler", "fcntl", "struct",
}  # fmt: skip


@pytest.fixture
def facts(ways):
    """Run a program that prints facts, plainly and in our two ways, and give those that differ."""

    def compare(*arguments, env=None, python=sys.executable):
        expected, *ours = (_facts(run([python, *arguments], env)) for run in (ways.plain, ways.run, ways.preload))
        pairs = [(found, item) for found in ours for item in expected.items()]
        return [(name, value, found.get(name)) for found, (name, value) in pairs if found.get(name) != value]

    return compare


def _facts(ended):
    assert ended.status == 0, ended.log
    facts = dict(line.split(": ", 1) for line in ended.log.splitlines())
    facts["modules"] = set(facts["modules"].strip("[]").replace("'", "").split(", ")) - OWN_MODULES
    return facts


@pytest.mark.parametrize(("options", "variables"), [
    *((options, {}) for options in ("", "-u", "-I", "-W error -X dev", "-OO -B", "-sE")),
    ("", {"PYTHONUNBUFFERED": "1"}), ("", {"PYTHONIOENCODING": "latin-1:replace"}), ("", {"PYTHONSAFEPATH": "1"}),
    ("", {"PYTHONUTF8": "1", "LC_ALL": "C"}), ("", {"ODD": "line\nbreak \udcff \u00e9"}),
    ("", {"PYTHONPATH": "a:/b", "TZ": "Asia/Tokyo"}),
])  # fmt: skip
def test_a_script_sees_what_it_would_see(ways, facts, options, variables):
    (ways.cwd / "facts.py").write_text(FACTS)
    assert facts(*options.split(), "facts.py", "a", "-b", "", env=variables) == []


@pytest.mark.parametrize(
    "arguments",
    [["./facts.py"], ["sub/../facts.py"], ["link/facts.py"], ["linked.py"], ["-m", "package"],
     ["-m", "package.tool", "x"], ["package"], ["package/", "x"], ["-c", FACTS, "x", "-y"], ["program.zip", "x"]],
    ids=lambda arguments: " ".join(arguments)[:20],
)  # fmt: skip
def test_a_program_is_where_python_finds_it(ways, facts, arguments):
    for name in ("facts.py", "sub/there.py", "package/__main__.py", "package/tool.py"):
        (ways.cwd / name).parent.mkdir(exist_ok=True)
        (ways.cwd / name).write_text(FACTS)
    (ways.cwd / "link").symlink_to(ways.cwd)
    (ways.cwd / "linked.py").symlink_to("sub/there.py")
    with zipfile.ZipFile(ways.cwd / "program.zip", "w") as archive:
        archive.writestr("__main__.py", FACTS)
    assert facts(*arguments) == []


def test_relative_imports_of_a_module(ways, same):
    (ways.cwd / "package").mkdir()
    (ways.cwd / "package" / "__init__.py").write_text("print('package', __name__)")
    (ways.cwd / "package" / "helper.py").write_text("import sys; print(sys.argv); value = 3")
    (ways.cwd / "package" / "run.py").write_text("from . import helper\nfrom .helper import value\nprint(value)")
    assert same("-m", "package.run", "x").status == 0


def test_modules_beside_the_program_come_first(ways, same):
    """Also where they have the name of a module of the library that the bootstrap uses itself."""
    for name in ("struct", "faulthandler", "fcntl", "names", "failure", "protocol"):
        (ways.cwd / f"{name}.py").write_text(f"mine = '{name}'")
    source = "import names, failure, protocol, struct\nprint(struct.mine, names.mine, protocol.mine)"
    assert same("train.py", train=source).log == "struct names protocol\n"


ENDS = {
    "source and pickles of main": "import inspect, pickle\nclass Point:\n    x = 3\ndef f():\n    return 1\n"
    "print(inspect.getsource(f), pickle.loads(pickle.dumps(Point())).x, Point.__module__, pickle.dumps(Point()))",
    "exit 3": "import sys; sys.exit(3)",
    "exit none": "raise SystemExit",
    "exit text": "import sys; sys.exit('in words é')",
    "exit large": "import sys; sys.exit(1000)",
    "exit object": "import sys; sys.exit([1])",
    "os exit": "import os; os._exit(4)",
    "error": "def f(x):\n    return 1 / x\n\nf(0)",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "notes": "e = ValueError('x')\ne.add_note('note')\nraise e",
    "syntax": "x = 1\nif x\n    pass",
    "indentation": "  x = 1\n y",
    "not utf-8 but declared": "# -*- coding: latin-1 -*-\nprint('x')\nraise ValueError",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "real interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "in library": "import json; json.loads('{')",
    "missing import": "import no_such_module",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno, a[2].tb_next)\n1 / 0",
    "hook exits": "import sys\ndef hook(*a):\n    sys.exit(7)\nsys.excepthook = hook\n1 / 0",
    "at exit": "import atexit, sys\natexit.register(lambda: print('bye', '__file__' in globals(), sys.last_type))\n1 / 0",
    "thread ends later": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('later', '__file__' in globals()))).start()",
    "thread fails": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='t').start()",
    "last": "import sys, atexit, traceback\n"
    "atexit.register(lambda: traceback.print_exception(sys.last_type, sys.last_value, sys.last_traceback))\n1 / 0",
    "flushed": "import sys, os\nsys.stdout.write('a'); sys.stderr.write('b'); raise SystemExit(5)",
    "closed": "import sys\nsys.stdout.close()",
    "warning": "import warnings\nwarnings.warn('careful')\ndef f():\n    warnings.warn('caller', stacklevel=2)\nf()",
}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_it_would(ways, same, source):
    (ways.cwd / "train.py").write_text(source, encoding="latin-1" if "latin" in source else "utf-8")
    assert "launcher/preload" not in same("train.py").log


@pytest.mark.parametrize("source", ["1 / 0", "import sys; sys.exit(3)", "raise KeyboardInterrupt", "if", "print('é')"])
def test_code_and_modules_end_as_they_would(same, source):
    for arguments in (("-c", source), ("-m", "module")):
        assert "launcher/preload" not in same(*arguments, module=source).log


@pytest.mark.parametrize("arguments", [["missing.py"], ["-m", "missing"], ["empty"], ["-m", "empty"], ["."]])
def test_what_is_not_there_is_reported_as_by_python(ways, same, arguments):
    (ways.cwd / "empty").mkdir()
    assert same(*arguments).status != 0


def test_compiled_files(ways, same):
    import py_compile

    (ways.cwd / "train.py").write_text("import sys\nprint(__file__, __loader__.__class__, sys.argv)\n1 / 0")
    py_compile.compile(str(ways.cwd / "train.py"), cfile=str(ways.cwd / "train.pyc"))
    assert same("train.pyc", "x").status == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(same, method):
    source = (PROGRAMS / "preload_multiprocessing.py").read_text()
    assert same("train.py", method, train=source).log.endswith("sum 285\n")


def test_coverage(same):
    pytest.importorskip("coverage")
    assert same("-m", "coverage", "run", "train.py", train="print(__name__, __file__)\n").status == 0


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_versions_of_python(ways, facts, same, version):
    python = f"python{version}"
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    (ways.cwd / "facts.py").write_text(FACTS)
    (ways.cwd / "train.py").write_text("def f(x):\n    return 1 / x\n\nf(0)")
    assert facts("facts.py", "x", python=python) == []
    for arguments in (["./train.py"], ["-m", "train"], ["-c", "def f():\n  1 / 0\nf()"], ["missing.py"]):
        same(*arguments, python=python)


@pytest.mark.slow
def test_a_torch_program(ways):
    pytest.importorskip("torch")
    argv = [sys.executable, str(PROGRAMS / "preload_torch.py")]
    bootstrapped, forked = ways.run(argv), ways.preload(argv, modules=["torch", "torch._dynamo"])
    assert (bootstrapped.status, bootstrapped.log) == (forked.status, forked.log) == (0, forked.log)
    gradient = [round(2 * math.cos(number) - math.sin(number), 4) for number in range(6)]
    first, second, *rest = forked.log.splitlines()
    assert (first.partition("]")[0], second.partition("]")[0]) == ("[0.0, 1.0, 2.0, 3.0", "[4.0, 5.0, 6.0, 7.0")
    assert rest == [str(gradient), "216000000.0"]
