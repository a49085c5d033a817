"""What a dump of Python stacks says: formats of several versions, cut off anywhere, or none at all."""

import fcntl
import json
import os
import random
import signal
import threading

import pytest

from launcher.supervise.diagnosis.stack_parser import (
    MAX_BYTES,
    Frame,
    Sources,
    crash_place,
    is_local,
    parse_faulthandler,
    parse_py_spy,
    understood,
)
from tests.conftest import PATIENCE_S

LIBRARY = "/opt/env/lib/python3.11"
TORCH = f"{LIBRARY}/site-packages/torch/distributed"
# As Python 3.8 to 3.13 write it: newest thread first, the main thread last.
PLAIN = b"""\
Thread 0x00007f772e81c6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/project/data.py", line 12 in fetch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f772fa82b80 (most recent call first):
  File "/home/me/project/data.py", line 88 in load
  File "/home/me/project/train.py", line 40 in <module>
  File "/opt/launcher/preload/start.py", line 9 in run
"""
# As Python 3.14 writes it: with names of threads, and perhaps what C was doing.
NAMED = b"""\
Thread 0x00007f01 [loader (most r] (most recent call first):
  File "/home/me/data.py", line 12 in fetch

Current thread 0x00007f02 [python] (most recent call first):
  Garbage-collecting
  File "/home/me/train.py", line 40 in step
  ...

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x2f [0x5b27]
  <truncated rest of calls>
"""


def frames(*triples):
    lines = (f'  File "{file}", line {line} in {function}\n' for file, line, function in triples)
    return f"Current thread 0x0001 (most recent call first):\n{''.join(lines)}".encode()


def stack_of(*triples, cwd=""):
    return understood(parse_faulthandler(frames(*triples)), Sources(), cwd)


SINGLE = b'<Cannot show all threads without the GIL>\nStack (most recent call first):\n  File "a", line 1 in f\n'
ESCAPED = (
    rb"Stack (most recent call first):" + b'\n  File "/home/caf\\xe9/\\u4e2d\\x1b.py", line 3 in \\xe4hm\n'
    b"  File ???, line ??? in ???\n"
)


@pytest.mark.parametrize(
    ("text", "main", "others"),
    [
        (PLAIN.replace(b"Current t", b"T").replace(b"Thread", b"Current thread", 1),
         [Frame("/home/me/project/data.py", 88, "load"), Frame("/home/me/project/train.py", 40, "<module>"),
          Frame("/opt/launcher/preload/start.py", 9, "run")], ["wait"]),
        (NAMED, [Frame("/home/me/train.py", 40, "step")], ["fetch"]),
        (SINGLE, [Frame("a", 1, "f")], []),
        (PLAIN[70:] + NAMED, [Frame("/home/me/train.py", 40, "step")], ["fetch"]),
        (ESCAPED, [Frame("/home/café/中\\x1b.py", 3, "ähm"), Frame("???", None, "???")], []),
    ],
    ids=["the main thread is last", "names and C stacks", "no number", "the last of two dumps", "escapes, unknowns"],
)  # fmt: skip
def test_the_frames_of_a_dump(text, main, others):
    dump = parse_faulthandler(text)
    assert list(dump.main) == main
    assert [thread[0].function for thread in dump.others] == others


def test_a_main_thread_behind_100_others_is_not_guessed():
    stack = understood(parse_faulthandler(PLAIN + b"\n...\n"), Sources())
    assert (stack.state, stack.doing) == ("running", "running; it has too many threads to show the main thread")
    assert (stack.place, stack.frames, len(stack.others)) == ("", (), 2)


@pytest.mark.parametrize("text", [PLAIN, NAMED])
def test_a_dump_cut_off_anywhere_never_tells_a_wrong_frame(text):
    whole = parse_faulthandler(text)
    known = {frame for thread in (whole.main, *whole.others) for frame in thread}
    for length in range(len(text)):
        part = parse_faulthandler(text[:length])
        assert part is None or {frame for thread in (part.main, *part.others) for frame in thread} <= known


def test_py_spy_names_the_main_thread_by_its_number():
    def thread(number, name):
        found = {"name": name, "filename": "/home/me/train.py", "line": 40, "short_filename": "train.py"}
        return {"pid": 7, "os_thread_id": number, "thread_name": None, "frames": [found]}

    said = json.dumps([thread(7, "step"), thread(8, "load")])
    dump = parse_py_spy(said.encode(), 7)
    assert dump.main == (Frame("/home/me/train.py", 40, "step"),)
    assert dump.others == ((Frame("/home/me/train.py", 40, "load"),),)
    for number in ("1e400", "-1", "1.5", "true", "1" + "0" * 400, '"7"', "null"):
        odd = said.replace("40", number).encode()
        assert parse_py_spy(odd, 7).main == (Frame("/home/me/train.py", None, "step"),)


@pytest.mark.parametrize(("log", "place"), [
    (PLAIN, "data.py:88 in load"), (NAMED, "train.py:40 in step"), (NAMED + b"\n" + PLAIN, "data.py:88 in load"),
    (b"Current thread 0x1 (most recent call first):\n" + b'  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
     b'  File "train.py", line 2 in <module>', "train.py:2 in <module>"),
    (b"Current thread 0x1 (most recent call first):\n" + b'  File "/usr/lib/python3.11/runpy.py", line 5 in run\n', "runpy.py:5 in run"),
    (b'step 1\n  File "train.py", line 2 in f\n', None), (b"Current thread 0x1\n  <no Python frame>\n", None), (b"", None),
])  # fmt: skip
def test_a_crash_is_placed_in_the_user_s_own_code(log, place):
    assert crash_place(log.decode()) == place


def test_garbage_is_no_dump():
    source = random.Random(7)
    for size in (0, 1, 100, 10_000):
        assert parse_faulthandler(source.randbytes(size)) is None
        assert parse_py_spy(source.randbytes(size), 1) is None
    for text in (b"[]", b"{}", b"null", b'[{"frames": [{"line": 1}]}]', b"[" * 100_000, b"[1]"):
        assert parse_py_spy(text, 1) is None
    assert parse_faulthandler(frames(("a.py", "1" * 5000, "f"))) is None


SITE = f"{LIBRARY}/site-packages"
C10D, LOGGER = (f"{TORCH}/{name}.py" for name in ("distributed_c10d", "c10d_logger"))
STEP = ("/home/me/train.py", 40, "step")
AT_STEP = "at train.py:40 in step"


@pytest.mark.parametrize(("inner", "doing"), [
    # Neither the standard library, nor installed packages, nor what tlaunch put below is a user's place.
    ([("/usr/lib64/python3.11/threading.py", 327, "wait"), (f"{SITE}/torch/utils/data/loader.py", 1, "__next__")],
     f"{AT_STEP}, inside threading.py:327 in wait"),
    ([("/usr/lib/python3.11/queue.py", 1, "get"), (f"{SITE}/launcher/trainer/session.py", 5, "run")],
     "at session.py:5 in run, inside queue.py:1 in get"),
    # A collective is named as the user called it: not as a function deep inside of it, nor as a wrapper around it.
    ([(C10D, 3252, "all_reduce"), (LOGGER, 83, "wrapper")], "in all_reduce"),
    ([(C10D, 9, "_store_barrier"), (C10D, 8, "init_process_group")],
     "in init_process_group"),
    ([(f"{TORCH}/rendezvous.py", 9, "_create_store"), (LOGGER, 83, "wrapper")], "in _create_store"),
    ([(f"{SITE}/deepspeed/comm/comm.py", 9, "all_gather")], "in all_gather"),
    ([(f"{SITE}/mindspore/communication/management.py", 9, "init")], "in init"),
    ([("/home/me/tlaunch/launcher/trainer/parallel/shared_memory.py", 9, "barrier"),
      ("/home/me/tlaunch/launcher/trainer/parallel/shared_memory.py", 8, "all_reduce")], "in all_reduce"),
    # Who waits for a thread, or imports torch, does not wait for other ranks.
    ([("/usr/lib/python3.11/connection.py", 1, "recv")], f"{AT_STEP}, inside connection.py:1 in recv"),
    ([("/usr/lib/python3.11/threading.py", 700, "barrier")], f"{AT_STEP}, inside threading.py:700 in barrier"),
    ([("/usr/lib/python3.11/inspect.py", 1, "signature"), (f"{TORCH}/tensor.py", 2, "<module>")],
     f"{AT_STEP}, inside inspect.py:1 in signature"),
    ([], AT_STEP),
    # A model that torch.distributed's wrapper calls computes: the wrapper further out does not wait.
    ([("/home/me/model.py", 3, "forward"), (f"{TORCH}/fsdp/wrap.py", 9, "forward")], "at model.py:3 in forward"),
])  # fmt: skip
def test_the_place_is_the_users_own_code_or_the_collective_that_it_called(inner, doing):
    below = [
        ("/home/me/train.py", 50, "<module>"),
        ("<frozen runpy>", 88, "_run_code"),
        ("/opt/launcher/preload/start.py", 9, "run"),
    ]
    stack = stack_of(*inner, STEP, *below)
    assert stack.in_collective == doing.startswith("in ")
    assert stack.doing == (f"{doing}, called {AT_STEP}" if stack.in_collective else doing)
    assert stack.place == (AT_STEP if stack.in_collective else doing.partition(",")[0]).removeprefix("at ")
    assert stack.frames[-1] == "me/train.py:50 in <module>"


@pytest.mark.parametrize(("inner", "may_wait"), [
    ([(f"{SITE}/mindspore/graph/api.py", 2432, "_exec_pip"), (f"{SITE}/mindspore/nn/cell.py", 9, "__call__")], True),
    ([(f"{SITE}/torch/autograd/graph.py", 9, "_engine_run_backward")], True),
    ([("/home/me/loss.py", 3, "hook"), (f"{SITE}/torch/autograd/graph.py", 9, "_engine_run_backward")], False),
    ([(C10D, 3252, "all_reduce")], False),
    ([], False),
])  # fmt: skip
def test_libraries_that_may_wait_for_other_ranks(inner, may_wait):
    assert stack_of(*inner, STEP).may_wait is may_wait


CALLS = {
    "work.wait()": "wait", "comm.Allreduce(sendbuf, recvbuf)": "Allreduce", "MPI.COMM_WORLD.Barrier()": "Barrier",
    "data = comm.recv(source=0)": "recv", "dist.gather(x)": "gather",
    "dist.broadcast(x, src=dist.get_rank())": "broadcast",
}  # fmt: skip
OTHER_LINES = (
    "data = connection.recv(4096)", "time.sleep(30)", "if dist.get_rank() == 1: time.sleep(1000)", "await_nothing()",
    "if failed(): time.sleep(1000) or dist.barrier()", "loss = step(dist.get_world_size())", "loss.backward()",
    "total = compute(comm.Get_rank(), comm.rank())",
)  # fmt: skip


@pytest.mark.parametrize(("source", "name"), [*CALLS.items(), *((line, None) for line in OTHER_LINES)])
def test_libraries_written_in_c_are_known_by_the_line_that_calls_them(tmp_path, source, name):
    """They have no Python frames: only the innermost line of the user's code tells."""
    program = tmp_path / "train.py"
    program.write_text(f"def step():\n    {source}\n")
    stack = stack_of((program, 2, "step"))
    assert stack.in_collective is (name is not None)
    assert stack.doing == (f"in {name}, called at train.py:2 in step" if name else f"at train.py:2 in step: {source}")


def test_the_source_line_of_a_call(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(f"worker.wait()\n{'x' * 200}\n    load(\tnext)\x1b[2J  \n")
    assert not stack_of(("/usr/lib/python3.11/subprocess.py", 1, "wait"), (program, 1, "<module>")).in_collective
    assert stack_of((program, 2, "f")).doing == f"at train.py:2 in f: {'x' * 77}..."
    assert stack_of(("train.py", 3, "f"), cwd=str(tmp_path)).doing == "at train.py:3 in f: load(next)[2J"
    assert stack_of(("train.py", 3, "f")).doing == "at train.py:3 in f"


# --- lines of source files, from file systems that answer and from those that do not ---


def test_sources_are_read_once_and_others_left_out(tmp_path):
    (tmp_path / "short.py").write_text("x\n")
    (tmp_path / "large.py").write_bytes(b"x\n" * (MAX_BYTES // 2 + 1))
    os.mkfifo(tmp_path / "pipe")
    for name, line in (("gone.py", 1), (".", 1), ("short.py", 9), ("large.py", 1), ("pipe", 1), ("nul\0", 1)):
        assert Sources().line(f"{tmp_path}/{name}", line) is None
    assert Sources().line("<string>", 1) is None
    sources, short = Sources(), f"{tmp_path}/short.py"
    assert sources.line(short, 1) == "x"
    (tmp_path / "short.py").write_text("y\n")
    assert (sources.line(short, 1), Sources().line(short, 1)) == ("x", "y")


def test_only_disks_and_memory_are_local():
    known = {"/": "nfs4", "/data": "nfs4", "/data/disk": "ext4", "/disk": "xfs", "/fuse": "fuse.sshfs",
             "/unheard": "newfs", "/proc": "proc"}  # fmt: skip
    assert all(is_local(path, known) for path in ("/home/me/train.py", "/database/train.py", "/disk/train.py"))
    networks = ("/data/train.py", "/data", "/data/disk/train.py", "/home/../data/train.py", "/fuse/train.py")
    assert not any(is_local(path, known) for path in (*networks, "/unheard/train.py", "/proc/1/environ"))


def test_links_are_followed_before_anything_is_touched(tmp_path):
    local, network = tmp_path / "local", tmp_path / "network"
    local.mkdir()
    network.mkdir()
    for place in (local, network):
        (place / "train.py").write_text("x\n")
    (tmp_path / "first").symlink_to("local/../second")
    (tmp_path / "second").symlink_to(network)
    (tmp_path / "to_local").symlink_to(local)
    (tmp_path / "circle").symlink_to("circle")
    known = {"/": "ext4", str(network): "lustre"}
    found = {name: is_local(f"{tmp_path}/{name}/train.py", known) for name in ("first", "second", "to_local", "circle")}
    assert found == {"first": False, "second": False, "to_local": True, "circle": False}
    assert not is_local(f"{tmp_path}/first/../local/train.py", known)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="needs Linux's leases")
def test_a_network_that_does_not_answer_is_left_alone(tmp_path):
    """Its lines are given up, and all others at once. An agent allows no time: all its ranks would wait with it."""

    def line(network_s, *numbers):
        """As if the temporary directory were a network's: none is mounted here."""
        sources = Sources(network_s)
        sources._mounts = {"/": "ext4", str(tmp_path): "nfs4"}
        return [sources.line(str(path), number) for number in numbers]

    path = tmp_path / "train.py"
    path.write_text("x\ny\n")
    assert line(0.0, 1) == [None]
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(path, os.O_RDWR)
    threads = set(threading.enumerate())
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert line(0.1, 1, 2) == [None, None]
        [left] = set(threading.enumerate()) - threads
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)
    left.join(PATIENCE_S)
    assert line(PATIENCE_S, 1) == ["x"]
