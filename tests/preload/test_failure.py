"""failure.json and stacks.log: what a rank notes of its own end, without changing it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from launcher.core.resources import PACKAGE
from launcher.preload import failure as hook
from launcher.preload import frames
from launcher.program.program_command import parse_python
from launcher.supervise.fork_server import bootstrap_argv

SOURCES = {
    "exception": ("import threading\ndef step():\n    raise ValueError('no such word')\nstep()", {"kind": "exception",
        "type": "ValueError", "message": "no such word", "where": "train.py:3 in step", "status": 1}),
    "in a library": ("import json\ndef load():\n    json.loads('{')\nload()",
        {"kind": "exception", "type": "json.decoder.JSONDecodeError", "where": "train.py:3 in load"}),
    "own class": ("class Odd(Exception):\n    pass\nraise Odd('é\\n\"')", {"type": "Odd", "message": 'é\n"'}),
    "syntax": ("if x", {"kind": "exception", "type": "SyntaxError", "where": "train.py:1"}),
    "interrupt": ("raise KeyboardInterrupt", {"kind": "exception", "type": "KeyboardInterrupt", "status": 130}),
    "exit": ("import sys\nsys.exit(3)", {"kind": "exit", "type": None, "status": 3, "where": "train.py:2 in <module>"}),
    "exit text": ("import sys\nsys.exit('why')", {"kind": "exit", "status": 1, "message": "why"}),
    "exit after an exception": ("import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(4)",
        {"kind": "exit", "type": "ZeroDivisionError", "status": 4}),
    "os exit": ("import os\ndef leave():\n    os._exit(5)\nleave()",
        {"kind": "os_exit", "type": None, "status": 5, "where": "train.py:3 in leave"}),
    "os exit in a handler": ("import os\ntry:\n    1 / 0\nexcept Exception:\n    os._exit(6)",
        {"kind": "os_exit", "type": "ZeroDivisionError", "status": 6}),
    "os exit in a thread": (("import os, threading\nt = threading.Thread(target=os._exit, args=(7,), name='worker')\n"
        "t.start()\nt.join()"), {"kind": "os_exit", "status": 7, "thread": "worker"}),
    "the first stands": ("import atexit, os\natexit.register(lambda: os._exit(9))\n1 / 0",
        {"kind": "exception", "type": "ZeroDivisionError"}),
}  # fmt: skip


@pytest.fixture
def train(ways, way):
    def run(source, *options):
        (ways.cwd / "train.py").write_text(source)
        return way([sys.executable, *options, "train.py"])

    return run


def noted(ended):
    return json.loads((ended.device_dir / hook.FILE).read_text())


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_failures_are_noted(train, source, expected):
    before_ns = time.time_ns()
    ended = train(source)
    found = noted(ended)
    assert {name: found[name] for name in expected} == expected
    assert before_ns < found["time_ns"] < time.time_ns()
    assert (found["schema"], found["pid"] > 0) == (1, True)
    assert [path.name for path in ended.device_dir.glob("failure*")] == ["failure.json"]


@pytest.mark.parametrize("loaded", ["", "import traceback\n"])
@pytest.mark.parametrize(("end", "link"), [
    (" from error", "The above exception was the direct cause"), ("", "During handling of the above exception"),
])  # fmt: skip
def test_the_traceback_shows_causes_and_source_lines(train, loaded, end, link):
    source = f"{loaded}try:\n    {{}}['key']\nexcept KeyError as error:\n    raise ValueError('b'){end}"
    traceback = noted(train(source))["traceback"]
    for words in ("{}['key']", "KeyError: 'key'", link):
        assert words in traceback
    assert traceback.rstrip().endswith("ValueError: b")
    assert "launcher/preload" not in traceback


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize("loaded", ["", "import traceback\n"])
@pytest.mark.parametrize("notes", ["['of shard 7', 'of 12']", "('of shard 7', 'of 12')"])
def test_the_traceback_shows_notes(train, loaded, notes):
    found = noted(train(f"{loaded}error = ValueError('b')\nerror.__notes__ = {notes}\nraise error"))
    assert found["traceback"].endswith("ValueError: b\nof shard 7\nof 12\n")
    assert found["message"] == "b"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on")
@pytest.mark.parametrize("notes", ["None", "7", "'text'", "[Odd()]"])
def test_notes_that_cannot_be_shown_do_no_harm(train, notes):
    odd = "class Odd:\n    def __str__(self): 1 / 0\n"
    found = noted(train(f"{odd}error = ValueError('b')\nerror.__notes__ = {notes}\nraise error"))
    assert "ValueError: b\n" in found["traceback"]


@pytest.mark.parametrize("loaded", ["", "import traceback\n"])
@pytest.mark.parametrize(
    ("code", "line", "kind"), [("x = 1\ndef f(:\n", 2, "SyntaxError"), ("if 1:\nx = 2\n", 2, "IndentationError")]
)
def test_the_place_of_a_syntax_error_is_shown(ways, train, loaded, code, line, kind):  # noqa: PLR0917
    (ways.cwd / "utils.py").write_text(code)
    found = noted(train(f"{loaded}import sys\nsys.path.insert(0, '.')\nimport utils"))
    assert (found["type"], found["where"]) == (kind, f"utils.py:{line}")
    assert f'utils.py", line {line}\n    {code.splitlines()[line - 1]}\n' in found["traceback"]


@pytest.mark.parametrize(("loaded", "failing"), [("", "1 / 0"), ("import traceback\n", "raise SystemExit(7)")])
@pytest.mark.parametrize(("end", "kind"), [("raise Odd", "exception"), ("import sys\nsys.exit(Odd())", "exit")])
def test_an_exception_that_cannot_be_shown_is_noted(train, loaded, failing, end, kind):
    found = noted(train(f"{loaded}class Odd(Exception):\n    def __str__(self):\n        {failing}\n{end}"))
    assert (found["kind"], found["status"], found["message"]) == (kind, 1, "<Odd that cannot be shown>")
    assert found["type"] == ("Odd" if kind == "exception" else None)
    assert found["traceback"].startswith("Traceback (most recent call last):")


def test_a_long_traceback_keeps_its_end(train):
    traceback = noted(train("import traceback\nraise ValueError('x' * 20000 + 'end')"))["traceback"]
    assert 8000 < len(traceback) < 8300
    assert traceback.endswith("end\n")
    source = (
        "import copy\nclass Odd:\n    def __init__(self): self.odd = []\none = Odd()\ninner = one.odd\n"
        "for _ in range(5000):\n    inner.append([])\n    inner = inner[0]\ncopy.deepcopy(one)"
    )
    for loaded in ("", "import traceback\n"):
        found = noted(train(loaded + source))
        lines = found["traceback"].splitlines()
        assert (found["type"], lines[0]) == ("RecursionError", "Traceback (most recent call last):")
        assert lines[2:4] == ["    copy.deepcopy(one)", "  [lines left out]"]
        assert lines[1].endswith(f'train.py", line {10 if loaded else 9}, in <module>')
        assert len(found["traceback"]) < 8300


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has groups of exceptions from 3.11 on")
@pytest.mark.parametrize("loaded", ["", "import traceback\n"])
def test_the_traceback_shows_what_a_group_consists_of(train, loaded):
    source = (
        f"{loaded}found = [OSError('disk full')]\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    found.append(error)\n"
        "raise ExceptionGroup('workers failed', [*found, ExceptionGroup('inner', [KeyError('a')])])"
    )
    lines = [line.lstrip(" |+") for line in noted(train(source))["traceback"].splitlines()]
    for line in ("OSError: disk full", "1 / 0", "ZeroDivisionError: division by zero", "KeyError: 'a'"):
        assert line in lines
    assert "ExceptionGroup: workers failed (2 sub-exceptions)".replace("2", "3") in lines


@pytest.mark.parametrize("source", [
    "print()", "import sys; sys.exit()", "import sys; sys.exit(0)", "import os; os._exit(0)", "import sys; sys.exit(256)",
    "import os\nif os.fork() == 0:\n    os._exit(3)\nos.wait()", "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()",
    "import multiprocessing as m\np = m.get_context('fork').Process(target=exit, args=(3,))\np.start()\np.join()",
    "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
])  # fmt: skip
def test_what_is_no_failure_of_the_rank_is_not_noted(train, source):
    ended = train(source)
    assert ended.status == 0, ended.log
    assert not (ended.device_dir / hook.FILE).exists()


@pytest.mark.parametrize("source", ["1 / 0", "import os; os._exit(3)", "import sys; sys.exit('x')"])
def test_a_failure_that_cannot_be_noted_changes_nothing(ways, source):
    (ways.cwd / "train.py").write_text(f"import shutil; shutil.rmtree('../gone', ignore_errors=True)\n{source}")
    argv = [sys.executable, "train.py"]
    expected = ways.plain(argv)
    command = parse_python(argv, os.environ["PATH"], ways.cwd)
    for directory in (ways.cwd.parent / "gone", "/dev/null/no-directory"):
        ours = bootstrap_argv(command, directory)
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(ours, cwd=ways.cwd, check=False, **output)
        assert (done.returncode, done.stdout) == (expected.status, expected.log)


def test_os_exit_looks_like_itself(train):
    ended = train(
        "import functools, inspect, os, pickle\n"
        "print = functools.partial(print, flush=True)\n"
        "print(inspect.signature(os._exit), os._exit.__name__, pickle.loads(pickle.dumps(os._exit)) is os._exit)\n"
        "try:\n    os._exit('x')\nexcept TypeError as error:\n    print(error)\n"
        "os._exit(status=0)"
    )
    shape, complaint = ended.log.splitlines()
    assert (ended.status, shape, "'str'" in complaint) == (0, "(status) _exit True", True)


def test_stacks_are_written_on_demand(train):
    ended = train(
        "import os, threading, time, signal\n"
        "def inner():\n    entered.set()\n    release.wait()\n"
        "entered, release = threading.Event(), threading.Event()\n"
        "thread = threading.Thread(target=inner)\nthread.start()\nentered.wait()\n"
        "def outer():\n    os.kill(os.getpid(), signal.SIGRTMAX - 3)\n    os.kill(os.getpid(), signal.SIGRTMAX - 3)\n"
        "outer()\nrelease.set()\nthread.join()\nprint('done')\n"
    )
    assert (ended.status, ended.log) == (0, "done\n")
    stacks = (ended.device_dir / hook.STACKS_FILE).read_text()
    assert stacks.count(" in outer") == stacks.count(" in inner") == 2


def test_a_rank_that_has_let_go_of_its_handler_survives_the_question(train):
    """Python puts back what was there before when it ends; the signal may come after that."""
    ask = "n = signal.SIGRTMAX - 3; faulthandler.unregister(n); os.kill(os.getpid(), n)"
    assert train(f"import faulthandler, os, signal; {ask}\nraise SystemExit(7)").status == 7


def test_a_crash_leaves_the_stack_in_the_log(train):
    ended = train("import os, signal\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()")
    assert ended.status == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.log
    assert " in crash" in ended.log


@pytest.fixture
def announced(tmp_path):
    """Runs a source as a rank of an engine; returns what the engine's stderr got, and what the log has."""

    def run(source, rank=3, log="", name="a run", is_heard=True):
        device_dir = tmp_path / "runs" / name / f"device{rank}"
        device_dir.mkdir(parents=True)
        (device_dir / "train.log").write_text(log)
        (tmp_path / "train.py").write_text(source)
        command = parse_python([sys.executable, "train.py"], None, tmp_path)
        reader, writer = os.pipe()
        with (device_dir / "train.log").open("a+") as output, os.fdopen(reader) as engines_stderr:
            if not is_heard:
                engines_stderr.close()
            argv = bootstrap_argv(command, device_dir, writer)
            done = subprocess.run(
                argv, cwd=tmp_path, stdout=output, stderr=output, pass_fds=[writer], check=False, timeout=60
            )
            os.close(writer)
            run.status = done.returncode
            output.seek(0)
            return engines_stderr.read() if is_heard else "", output.read()

    return run


@pytest.mark.parametrize(("source", "what"), [
    ("def step():\n    raise ValueError('no \\x1b such\\nword')\nstep()", "ValueError: no \\x1b such, at train.py:2 in step"),
    ("import sys\nprint('usage', file=sys.stderr)\nprint('wrong option', file=sys.stderr)\nsys.exit(2)",
     "exit code 2: wrong option, at train.py:4 in <module>"),
    ("raise ValueError('No such word.')", "ValueError: No such word, at train.py:1 in <module>"),
    ("import sys\nsys.exit('why')", "exit code 1: why, at train.py:2 in <module>"),
    ("import os\nos._exit(5)", "exit code 5, at train.py:2 in <module>"),
])  # fmt: skip
def test_the_first_failure_under_an_engine_is_announced(announced, source, what):
    said, log = announced(source)
    why, logs = "tlaunch why 'runs/a run'", "tlaunch logs 'runs/a run' --rank 3"
    assert said == f"error: rank 3: {what}\nhint: `{why}` shows more, `{logs}` its log\n"
    assert "hint: " not in log
    assert announced(source, rank=0)[0] == ""


def test_no_name_acts_on_the_terminal_of_an_engine(announced):
    said, _ = announced("exec(compile('1 / 0', 'a\\x1b[2J.py', 'exec'))", name="b\x1b]0;c\x07")
    assert said.replace("\n", "").isprintable()
    assert ", at a\\x1b[2J.py:1 in <module>\n" in said
    assert "tlaunch why 'runs/b\\x1b]0;c\\x07'" in said


@pytest.mark.parametrize("source", [
    "", "raise KeyboardInterrupt", "raise SystemExit(0)", "import os\nos.kill(os.getpid(), 9)", "raise SystemExit(130)",
    "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(143))\nos.kill(os.getpid(), 15)\nsignal.pause()",
])  # fmt: skip
def test_nothing_else_is_announced(announced, source):
    assert announced(source)[0] == ""


FULL = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # no file gets a byte more
# Stands for a world of several ranks: whoever gets as far as MPI_Finalize, which mpi4py calls so, is seen by its signal.
WORLD = """
import ctypes, sys, types
sys.modules["mpi4py"] = types.SimpleNamespace(rc=types.SimpleNamespace(finalize=None))
sys.modules["mpi4py.MPI"] = types.SimpleNamespace(
    Is_initialized=lambda: True, Is_finalized=lambda: False, COMM_WORLD=types.SimpleNamespace(Get_size=lambda: 2)
)
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))
"""


@pytest.mark.parametrize("end", ["raise ValueError", "sys.exit(1)"])
def test_no_failed_rank_waits_for_others_in_mpi(announced, tmp_path, end):
    lost = "import shutil\nshutil.rmtree('runs')\n"
    for before, is_heard in (("", True), (FULL, True), (lost, True), ("", False)):
        announced(f"{WORLD}{before}{end}", is_heard=is_heard)
        assert announced.status == 1, before
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    announced(WORLD)
    assert announced.status == -signal.SIGABRT


def test_on_a_full_disk_a_failure_is_announced_all_the_same(announced, tmp_path):
    said, _ = announced(f"{FULL}1 / 0")
    assert said.startswith("error: rank 3: ZeroDivisionError: division by zero, at train.py:3 in <module>\n")
    assert (tmp_path / "runs" / "a run" / "headline").stat().st_size == 0


def test_the_engines_stderr_is_not_the_programs(announced):
    source = """
import os, subprocess, sys
mine = [int(name) for name in os.listdir("/dev/fd") if int(name) > 99]
listing = "import os; print([name for name in os.listdir('/dev/fd') if int(name) > 99], flush=True)"
subprocess.run([sys.executable, "-c", listing], close_fds=False, check=True)
if (child := os.fork()) == 0:
    exec(listing)
    os._exit(1)
os.waitpid(child, 0)
os.closerange(3, 200)
kept = os.open("kept", os.O_WRONLY | os.O_CREAT)
for number in mine:
    os.dup2(kept, number)
1 / 0
"""
    said, log = announced(source)
    assert said == ""
    child, forked = log.splitlines()[:2]
    assert child == "[]"
    assert len(eval(forked)) == 1  # stacks.log


SECRET_MESSAGE = "postgres://me:PLAIN1@db/x refused, Authorization: Bearer PLAIN2, hf_PLAIN3aaaaaaaaaaaaaaaaaaaa"


@pytest.mark.parametrize("end", [
    "raise ValueError({})", "import sys\nsys.exit({})", "try:\n    raise KeyError({0})\nfinally:\n    print({0})",
])  # fmt: skip
@pytest.mark.parametrize("own", [False, True], ids=["", "re.py beside it"])
def test_secrets_are_masked(ways, train, end, own):
    """Others may read the file: its message, its traceback and the lines of the program in that."""
    if own:
        (ways.cwd / "re.py").write_text("raise ImportError('not the one of the library')")
    ended = train(end.format(repr(SECRET_MESSAGE)))
    text = (ended.device_dir / hook.FILE).read_text()
    assert "PLAIN" not in text
    assert "refused, Authorization: Bearer ********" in json.loads(text)["message"]
    assert "PLAIN" in ended.log or "exit" in end


def test_what_cannot_be_masked_is_left_out(train):
    gone = "import sys\nfor name in ('re', 'enum'):\n    sys.modules[name] = None\n"
    found = noted(train(f"{gone}raise ValueError({SECRET_MESSAGE!r})"))
    assert (found["type"], found["message"], found["where"]) == ("ValueError", "", "train.py:4 in <module>")
    assert not found["traceback"]


OURS = f"import sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\nfrom launcher.mesh.layouts import resolve_layout\ndef ask():\n    resolve_layout(4, dp=None, mp=3, pp=1, micro_batches=1)\nask()"


@pytest.mark.parametrize("loaded", ["", "import traceback\n"])
def test_an_error_of_ours_names_the_line_of_the_program(train, loaded):
    ended = train(loaded + OURS)
    found, line = noted(ended), 6 if loaded else 5
    assert found["where"] == f"train.py:{line} in ask"
    for text in (found["traceback"], ended.log):
        assert text.count('File "') == 2
        assert f'train.py", line {line}, in ask' in text
        assert "launcher/" not in text
        assert found["message"].splitlines()[0] in text


@pytest.mark.parametrize("form", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("letter", ["x", "語", "𝄞"])
def test_captured_output_is_cut_between_lines(form, letter):
    """A cut line could hold a secret without the name by which it is masked."""
    output = f"password={letter * 3990}\nlast line\n"
    error = subprocess.CalledProcessError(1, ["tool"], stderr=form(output))
    shown = frames.text(error, []).partition(frames.CAPTURED)[2]
    assert shown.split() == ["last", "line"]
