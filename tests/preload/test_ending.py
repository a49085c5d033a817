"""The end of a forked rank shows nothing that Python's own end would not show, and spares what was preloaded."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
# Preloaded: what Python does last in a process leaves a directory behind.
WITNESS = """
import os, sys
def hook(event, _, mkdir=os.mkdir):
    if event == "cpython.PyInterpreterState_Clear":
        mkdir("ended-by-python")
sys.addaudithook(hook)
"""
PRELOADED = ("json", "logging", "tempfile", "threading", "weakref", "witness")
HELD = """
import os
class Held:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        os.write(1, f"end of {self.name}\\n".encode())
"""
OPENED = "out = open('out.txt', 'w'); out.write('kept back')\n"
GIVEN = "import json\n" + OPENED + "json.held = out; del out, json\n"

# Programs whose rank ends without CPython's end.
SHORT = {
    "nothing": "pass",
    "printed": "import sys\nprint('a', end='')\nprint('b', file=sys.stderr, end='')",
    "exit 0": "import atexit, sys\natexit.register(print, 'bye')\nprint('a')\nsys.exit(0)",
    "exit 256": "import sys; sys.exit(256)",
    "exit in a thread": "import sys, threading\nthreading.Thread(target=sys.exit, args=(3,)).start()",
    "file": OPENED,
    "file of a function": OPENED + "def say():\n    out.write('.')\nsay()",
    "file of a closure": "def opened():\n    out = open('out.txt', 'w'); out.write('kept back')\n    return lambda: out\nhold = opened()",
    "file of a class": "class Log:\n    out = open('out.txt', 'w')\nLog.out.write('kept back')",
    "file of a default": "def say(out=open('out.txt', 'w')):\n    out.write('kept back')\nsay()",
    "file of a cycle": OPENED + "class Node: pass\none, other = Node(), Node()\none.other, other.one, one.out = other, one, out\ndel one, other, out",
    "file of an own module": "import own\nown.out.write('more')",
    "file of a module of a package": "import package.part\npackage.part.out.write('more')",
    "file of a removed module": "import own, sys\ndel sys.modules['own']",
    "file as stdout": "import sys\nsys.stdout = open('out.txt', 'w')\nprint('kept back')",
    "stdout in a wrapper": "import sys\nclass Tee:\n    def __init__(self, *to): self.to = to\n    def write(self, text):\n        for one in self.to: one.write(text)\n"
    "    def flush(self):\n        for one in self.to: one.flush()\nsys.stdout = Tee(sys.stdout, open('out.txt', 'w'))\nprint('kept back')",
    "stdout detached": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8', line_buffering=True)\nprint('a')",
    "stdout detached for a codec": "import codecs, sys\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint('a')",
    "stderr detached": "import io, sys\nsys.stderr = io.TextIOWrapper(sys.stderr.detach(), encoding='utf-8', line_buffering=True)\nprint('a', file=sys.stderr)",
    "stderr detached for a codec": "import codecs, sys\nsys.stderr = codecs.getwriter('utf-8')(sys.stderr.detach())\nprint('a', file=sys.stderr)",
    "both detached": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())\nsys.stderr = io.TextIOWrapper(sys.stderr.detach())\nprint('a')",
    "finaliser prints to a detached stdout": "import io, os, sys\nclass Held:\n    def __del__(self, write=os.write):\n        try:\n            print('gone')\n        except ValueError:\n            write(1, b'refused')\none = Held()\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint('a')",
    "binary files": "import os\none = open('one', 'wb'); one.write(b'x' * 10000)\nother = open('other', 'w+b'); other.write(b'y')\nfd = os.fdopen(os.open('fd', 65), 'w'); fd.write('z')",
    "compressed": "import bz2, gzip, lzma\nfiles = [gzip.GzipFile('a.gz', 'w', mtime=0), bz2.open('a.bz2', 'w'), lzma.open('a.xz', 'w')]\nfor file in files: file.write(b'x' * 999)",
    "archive": "import zipfile\nfile = zipfile.ZipFile('a.zip', 'w')\nfile.writestr(zipfile.ZipInfo('a'), 'text')",
    "mapped": "import mmap\nfile = open('m', 'w+b'); file.truncate(10)\nmap = mmap.mmap(file.fileno(), 10); map[:] = b'0123456789'",
    "buffer of a raw file": "import io\nclass Raw(io.RawIOBase):\n    def writable(self): return True\n"
    "    def write(self, data):\n        print(bytes(data)); return len(data)\nstream = io.TextIOWrapper(io.BufferedWriter(Raw()))\nstream.write('kept back')",
    "buffer of the C library": "import ctypes\nctypes.CDLL(None).printf(b'by printf')",
    "finaliser": HELD + "one = Held('one')\ncycle = Held('cycle'); cycle.own = cycle",
    "finaliser of a removed main": HELD + "import sys\none = Held('one')\ndel sys.modules['__main__']",
    "finaliser prints": "class Held:\n    def __del__(self):\n        print('gone', self.name, Held is None, __name__)\none = Held(); one.name = 'one'",
    "finaliser makes": HELD + "class Maker:\n    def __del__(self, kind=Held):\n        kind('made')\none = Maker()",
    "finaliser of a thread's own": HELD + "import threading\ndef work():\n    threading.local().x = Held('its own')\nthread = threading.Thread(target=work); thread.start()",
    "weak finalisers": HELD + "import weakref\none = Held('one'); weakref.finalize(one, print, 'finalised')\nlast = weakref.finalize(Held, print, 'not at exit'); last.atexit = False",
    "weak references": HELD + "import weakref\none = Held('one')\nreference = weakref.ref(one, lambda _: os.write(1, b'unbound\\n'))",
    "generator": "import os\ndef steps(write=os.write):\n    try:\n        yield 1\n    finally:\n        write(1, b'finally')\nsteps = steps(); next(steps)",
    "coroutine": "async def wait(): pass\ndef unused():\n    yield\nunused = unused()",
    "context": "import contextlib, contextvars\n@contextlib.contextmanager\ndef open_now():\n    print('open'); yield; print('closed')\n"
    "stack = contextlib.ExitStack(); stack.enter_context(open_now())",
    "temporary": "import pathlib, tempfile\ndirectory = tempfile.TemporaryDirectory(dir='.', prefix='temporary')\npathlib.Path(directory.name, 'x').touch()\n"
    "file = tempfile.NamedTemporaryFile(dir='.')\nkept = tempfile.NamedTemporaryFile('w', dir='.', prefix='kept', suffix='x', delete=False)\nimport os; os.rename(kept.name, 'kept'); kept.write('text')",
    "logging": "import logging, logging.handlers\nlogging.basicConfig(filename='log.txt', level=20)\nlogging.info('one')\n"
    "memory = logging.handlers.MemoryHandler(99, target=logging.FileHandler('memory.txt'))\nlogging.getLogger('b').addHandler(memory)\nlogging.getLogger('b').warning('two')",
    "signal handlers": "import signal\n" + OPENED + "signal.signal(signal.SIGTERM, lambda *_: out.write('x'))",
    "exit handlers": "import atexit\n" + OPENED + "@atexit.register\ndef last():\n    out.write(' and more')\n",
    "hooks": "import sys\n" + OPENED + "def hook(*_):\n    out.write('x')\nsys.excepthook = hook",
    "caches": "import functools\n" + OPENED + "@functools.lru_cache\ndef cached(x):\n    return open('cached.txt', 'w')\ncached(1).write('y')",
    "subclasses": "import json, logging\n" + OPENED + "class Encoder(json.JSONEncoder):\n    held = out\nclass Handler(logging.Handler):\n    held = out\nhandler = Handler()",
    "threads": "import threading, time\ndef late():\n    threading.main_thread().join()\n    print('later')\nthreading.Thread(target=late).start()",
    "pools": "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(2)\npool.submit(print, 'in a thread')",
    "processes": "import multiprocessing as m, os\ndef work(queue):\n    queue.put(1)\nif __name__ == '__main__':\n    context = m.get_context('fork')\n    queue = context.Queue()\n"
    "    process = context.Process(target=work, args=(queue,)); process.start()\n    print(queue.get())",
    "a child of its own": "import os\n" + HELD + "one = Held('one')\nif os.fork():\n    os.wait(); print('parent')\nelse:\n    print('child')",
    "shared memory": "from multiprocessing.shared_memory import SharedMemory\nmemory = SharedMemory(create=True, size=10)\nmemory.unlink()",
    "database": "import sqlite3\nbase = sqlite3.connect('base'); base.execute('pragma journal_mode=wal'); base.execute('create table t (x)'); base.commit()",
    "garbage is kept": "import gc\ngc.disable()\n" + HELD + "cycle = Held('cycle'); cycle.own = cycle; del cycle",
    "profiled": "import cProfile, pstats\nprofile = cProfile.Profile()\nprofile.runcall(sorted, [2, 1])\nprofile.dump_stats('stats')\nprint(pstats.Stats('stats').total_calls)\nimport os; os.remove('stats')",
}  # fmt: skip
# Programs that leave the end to CPython: it would show that something is missing.
WHOLE = {
    "exit 3": GIVEN + "import sys; sys.exit(3)",
    "exit by a message": GIVEN + "raise SystemExit('message')",
    "exception": GIVEN + "1 / 0",
    "interrupted": GIVEN + "raise KeyboardInterrupt",
    "exit 3, finaliser of a preloaded module": HELD + "import json, sys\njson.held = Held('one')\nsys.exit(3)",
    "exit 3, weak reference of a preloaded module": "import json, os, sys, weakref\nclass Kept: pass\nkept = Kept()\n"
    "def unbound(_, write=os.write):\n    write(1, b'unbound')\njson.reference = weakref.ref(Kept, unbound)\nsys.exit(3)",
    "exit 3, nothing is held": OPENED + "import sys; sys.exit(3)",
    "file of a preloaded module": GIVEN,
    "stdout detached, file of a preloaded module": "import io, sys\n" + GIVEN + "sys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint('a')",
    "file of a preloaded module's object": "import logging\n" + OPENED + "logging.getLogger('a').held = [out]; del out",
    "file of sys": "import sys\n" + OPENED + "sys.held = out",
    "file of builtins": "import builtins\n" + OPENED + "builtins.held = out",
    "file of a thread's own": "import threading\n" + OPENED + "local = threading.local(); threading.main_thread().held = out; local.x = 1",
    "file in a context": "import contextvars\n" + OPENED + "variable = contextvars.ContextVar('v'); variable.set(out)",
    "finaliser of a preloaded module": HELD + "import json\njson.held = Held('one')",
    "finaliser of a class of json": HELD + "import json\njson.JSONEncoder.held = {'a': (Held('one'),)}",
    "generator of a preloaded module": "import json, os\ndef steps(write=os.write):\n    try:\n        yield 1\n    finally:\n        write(1, b'finally')\njson.held = steps(); next(json.held)",
    "function of a preloaded module": "import json\n" + OPENED + "def say():\n    out.write('.')\njson.dumps = say\nsay()",
    "weak reference of a preloaded module": "import json, os, weakref\nclass Kept: pass\nkept = Kept()\n"
    "def unbound(_, write=os.write):\n    write(1, b'unbound')\njson.reference = weakref.ref(Kept, unbound)",
    "database of a preloaded module": "import json, sqlite3\njson.base = sqlite3.connect('base'); json.base.execute('pragma journal_mode=wal'); json.base.execute('create table t (x)'); json.base.commit()",
    "frozen by itself": HELD + "import gc\none = Held('one')\ngc.freeze()",
    "library": GIVEN + "import ctypes\nctypes.CDLL('libanl.so.1')",
    "daemon thread": "import threading\n" + GIVEN + "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "full": GIVEN + "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')",
    "full stdout": GIVEN + "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('x')",
    "warnings shown": "import warnings\nwarnings.simplefilter('default')\nout = open('out.txt', 'w')",
    "warnings shown at once": GIVEN + "import warnings\nwarnings.simplefilter('default')",
    "traced": GIVEN + "import sys\ndef trace(frame, event, _):\n    if 'ending' in frame.f_code.co_filename: print(event)\nsys.settrace(trace)",
    "profile": GIVEN + "import sys\ndef profile(frame, event, _):\n    if 'ending' in frame.f_code.co_filename: print(event)\nsys.setprofile(profile)",
    "exit handlers removed": "import atexit\natexit._clear()\n" + GIVEN,
}  # fmt: skip


@pytest.fixture
def ended(ways):
    """Run a program plainly and forked, assert that nothing differs, and return whether CPython ended the rank."""
    (ways.cwd / "witness.py").write_text(WITNESS)
    (ways.cwd / "own.py").write_text("out = open('own.txt', 'w'); out.write('kept back')")
    (ways.cwd / "package").mkdir()
    (ways.cwd / "package" / "part.py").write_text("from own import out")

    def compare(*arguments, python=sys.executable, env=None, modules=PRELOADED, fork_server=None):
        own = {path.name for path in ways.cwd.iterdir()} | {"__pycache__"}

        def results():
            made = {path.name: path for path in ways.cwd.iterdir() if path.name not in own}
            is_whole = made.pop("ended-by-python", None) is not None
            contents = {
                name: not name.startswith("base") and path.read_bytes() if path.is_file() else sorted(path.iterdir())
                for name, path in made.items()
            }
            for path in [*made.values(), ways.cwd / "ended-by-python"]:
                (shutil.rmtree if path.is_dir() else lambda file: file.unlink(missing_ok=True))(path)
            return contents, is_whole

        plain = ways.plain([python, *arguments], env)
        expected, _ = results()
        if fork_server is None:
            forked = ways.preload([python, *arguments], env, modules)
        else:
            [forked] = ways.fork(fork_server, [ways.request(env=env)])
        found, is_whole = results()
        assert (forked.status, forked.log, found) == (plain.status, plain.log, expected)
        return is_whole

    return compare


@pytest.mark.parametrize("source", SHORT.values(), ids=SHORT)
def test_what_a_rank_has_made_is_taken_apart(ways, ended, source):
    (ways.cwd / "train.py").write_text(source)
    assert not ended("train.py")


@pytest.mark.parametrize("name", ["nothing", "printed", "file of a function", "finaliser", "stdout detached"])
def test_a_program_needs_no_module_for_a_short_end(ways, ended, name):
    (ways.cwd / "train.py").write_text(SHORT[name])
    assert not ended("train.py", modules=("json", "witness"))


@pytest.mark.parametrize("options", [["-W", "default"], ["-X", "dev"]])
def test_python_warns_of_files_that_are_not_closed(ways, ended, options):
    (ways.cwd / "train.py").write_text(OPENED)
    assert ended(*options, "train.py", modules=("json", "witness"))


@pytest.mark.parametrize("source", WHOLE.values(), ids=WHOLE)
def test_python_ends_what_something_else_holds(ways, ended, source):
    (ways.cwd / "train.py").write_text(source)
    assert ended("train.py")


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_versions_of_python(ways, ended, version):
    python = f"python{version}"
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    for name in ("file of a function", "temporary", "finaliser", "exit handlers", "signal handlers"):
        (ways.cwd / "train.py").write_text(SHORT[name])
        assert not ended("train.py", python=python)
    for name in ("file of a preloaded module", "finaliser of a class of json", "exception"):
        (ways.cwd / "train.py").write_text(WHOLE[name])
        assert ended("train.py", python=python)


WRITING = """
#include <stdio.h>
__attribute__((destructor)) static void end(void) { FILE *file = fopen("by-the-library", "w"); fclose(file); }
"""


def build(library, source):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)


@pytest.mark.parametrize("directory", ["mine", "torch", "numpy.libs", "envs/google/lib"])
def test_a_library_is_ended_in_any_directory(ways, ended, directory):
    """Only packages that have been imported are known to leave nothing to do, not others' directories of their names."""
    library = ways.cwd / directory / "libmine.so"
    build(library, WRITING)
    (ways.cwd / "train.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r})")
    assert ended("train.py")


def test_a_library_of_a_module_of_any_kind_is_ended(ways, ended):
    build(ways.cwd / "libmine.so", WRITING)
    (ways.cwd / "withlib.py").write_text("import ctypes\nheld = ctypes.CDLL('./libmine.so')")
    (ways.cwd / "train.py").write_text("import withlib")
    assert ended("train.py", modules=(*PRELOADED, "withlib"))


@pytest.mark.parametrize("directory", ["numpy", "numpy.libs"])
def test_a_library_of_a_known_package_is_left_as_it_is(ways, ended, directory):
    (ways.cwd / "site" / "numpy").mkdir(parents=True)
    (ways.cwd / "site" / "numpy" / "__init__.py").touch()
    (ways.cwd / "numpy").symlink_to("site/numpy")
    build(ways.cwd / "site" / directory / "libmine.so", "int nothing;")
    (ways.cwd / "train.py").write_text(f"import ctypes, numpy\nctypes.CDLL('site/{directory}/libmine.so')")
    assert not ended("train.py")


HOLDING = "out = open('out.txt', 'a')\ndef write(text='by the rank'):\n    out.write(text)\n"


@pytest.mark.parametrize("source", [HOLDING, HELD + "one = Held('one')\ndef write(): pass\n"])
def test_what_a_module_of_any_kind_holds_is_finalised(ways, ended, source):
    (ways.cwd / "any.py").write_text(source)
    (ways.cwd / "train.py").write_text("import any\nany.write()")
    assert ended("train.py", modules=(*PRELOADED, "any"))


@pytest.mark.parametrize(("source", "variables"), [
    ("", {"LD_PRELOAD": "libm.so.6"}),
    ("import atexit; atexit.register(print, 'last')", {"PYTHONPATH": "site"}),
    ("import threading", {"PYTHONPATH": "site"}),  # which registers nothing
    (HELD + "one = Held('one')", {"PYTHONPATH": "site"}),
])  # fmt: skip
def test_python_ends_ranks_of_a_python_with_other_needs(ways, ended, source, variables):
    (ways.cwd / "site").mkdir()
    (ways.cwd / "site" / "sitecustomize.py").write_text(source)
    (ways.cwd / "train.py").write_text("print('done')")
    assert ended("train.py", env=variables) == (source != "import threading")


@pytest.mark.slow
def test_a_torch_program(ways, ended):
    """What training leaves in torch has no end to be seen, but for a process group, whose work may not be done."""
    pytest.importorskip("torch")
    # Threads that fed the workers with numbers end a moment after the loader does, and daemons are left to Python.
    fed = "import _thread, time\n    while _thread._count(): time.sleep(0.01)\n"
    last = f"    {fed}    exec(os.environ['GROUP'])"
    source = (PROGRAMS / "preload_torch.py").read_text().replace("    compute()", last)
    init = "import os, torch\ndef init():\n    torch.distributed.init_process_group('gloo', init_method=f'file://{os.getcwd()}/store', rank=0, world_size=1)\n"
    (ways.cwd / "train.py").write_text(init + source)
    groups = {"": False, "init()": True, "init(); torch.distributed.destroy_process_group()": False}
    with ways.preloaded([sys.executable, "train.py"], None, ("torch", "torch._dynamo", "witness")) as fork_server:
        found = {group: ended("train.py", env={"GROUP": group}, fork_server=fork_server) for group in groups}
    assert found == groups
