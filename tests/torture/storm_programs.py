"""What ranks of a storm do, in sh and in Python. The first of each ends well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    codes: frozenset[int]  # with which it may end by itself, as a shell reports it
    hangs: bool = False
    breaks_run: bool = False  # it may keep others, or the agent, from their work


def _sh(name: str, source: str, *codes: int, hangs: bool = False, breaks_run: bool = False) -> Program:
    return Program(name, f'D="$TLAUNCH_RUN_DIR/device$RANK"\n{source}\n', frozenset(codes), hangs, breaks_run)


def _py(name: str, source: str, *codes: int, hangs: bool = False, breaks_run: bool = False) -> Program:
    begin = "import os, sys, signal, time\nD = os.environ['TLAUNCH_RUN_DIR'] + '/device' + os.environ['RANK']\n"
    return Program(name, f"{begin}{source}\n", frozenset(codes), hangs, breaks_run)


SHELL = (
    _sh("well", "exit 0", 0),
    _sh("code", "exit 3", 3),
    _sh("code later", "sleep 0.4; exit 7", 7),
    _sh("killed", "kill -9 $$", 137),
    _sh("segfault", "sleep 0.2; kill -SEGV $$", 139),
    _sh("terminated", "kill -TERM $$", 143),
    _sh("below a shell", "sh -c 'kill -9 $$'; exit $?", 137),
    _sh("hang", "sleep 1000", 0, hangs=True),
    _sh("deaf", "trap '' TERM INT HUP QUIT USR1 USR2; while :; do sleep 1; done", 0, hangs=True),
    _sh("daemon", "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & exit 0", 0),
    _sh("double fork", "(setsid sh -c 'sleep 1000 & sleep 1000 &' &); exit 0", 0),
    _sh("log is held", "sleep 1000 & exit 0", 0),
    _sh("deaf children", "for i in 1 2 3 4 5 6 7 8 9 10; do (trap '' TERM; sleep 1000) & done; exit 5", 5),
    _sh("own group", "sleep 1000 & kill -9 0", 137),
    _sh("stops", "kill -STOP $$; exit 4", 4, hangs=True),
    _sh("chatty", "seq 200000; exit 0", 0),
    _sh("long line", "head -c 5000000 /dev/zero | tr '\\0' x; exit 6", 6),
    _sh("nul", "head -c 300000 /dev/zero; exit 0", 0),
    _sh("escapes", "printf '\\033]0;x\\007\\033[2J\\033Pq\\n\\033\\\\'; exit 8", 8),
    _sh("no directory", 'rm -rf "$D"; exit 2', 2, breaks_run=True),
    _sh("no run", 'rm -rf "$TLAUNCH_RUN_DIR"; exit 2', 2, breaks_run=True),
    _sh("pipes", 'for f in heartbeat failure.json stacks.log; do rm -f "$D/$f"; mkfifo "$D/$f"; done; exit 9', 9),
    _sh("pipe as log", 'rm -f "$D/train.log"; mkfifo "$D/train.log"; exit 9', 9),
    _sh(
        "pipes and hang",
        'for f in heartbeat failure.json train.log; do rm -f "$D/$f"; mkfifo "$D/$f"; done; sleep 1000',
        9,
        hangs=True,
    ),
    _sh("broken record", 'echo "{\\"pid\\": $$, \\"time_ns\\": 1e999}" > "$D/failure.json"; sleep 0.7; exit 9', 9),
    _sh("full disk", 'dd if=/dev/zero of="$TLAUNCH_RUN_DIR/fill" bs=1M count=3 2> /dev/null; exit 10', 10),
    _sh("closed descriptors", "exec 0<&- 1>&- 2>&-; sleep 0.1; exit 11", 11),
    _sh("other environment", "env -i sleep 1000 & sleep 0.3; exit 12", 12),
    _sh("no such program", "exec /no/such/program", 126, 127),
)
PYTHON = (
    _py("well", "pass", 0),
    _py("raises", "raise ValueError('bad batch 17')", 1),
    _py("raises later", "time.sleep(0.4); raise ValueError('bad batch 17')", 1),
    _py("words", "sys.exit('16 heads, settings say 8')", 1),
    _py("code", "sys.exit(5)", 5),
    _py("os._exit", "os._exit(4)", 4),
    _py("abort", "os.abort()", 134),
    _py("recursion", "def f(): f()\nf()", 1),
    _py("becomes another", "os.execvp('false', ['false'])", 1),
    _py(
        "handled",
        "import traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n    traceback.print_exc()\nprint('step 2')\nsys.exit(3)",
        3,
    ),
    _py(
        "traceback at the end",
        "import traceback\ntry:\n    1 / 0\nexcept ArithmeticError:\n    traceback.print_exc()",
        0,
    ),
    _py(
        "thread stays",
        "import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nsys.exit(6)",
        6,
        hangs=True,
    ),
    _py("handler stays", "import atexit\natexit.register(time.sleep, 1000)\nraise ValueError('b')", 1, hangs=True),
    _py("thread fails", "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()", 0),
    _py("child fails", "import subprocess\nsubprocess.run([sys.executable, '-c', '1 / 0'], check=True)", 1),
    _py("child is killed", "import subprocess\nsubprocess.run(['sh', '-c', 'kill -9 $$'], check=True)", 1),
    _py("hang", "time.sleep(1000)", 0, hangs=True),
    _py(
        "deaf",
        "for n in (1, 2, 3, 10, 12, 15):\n    signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        0,
        hangs=True,
    ),
    _py("stops", "os.kill(os.getpid(), signal.SIGSTOP)\nsys.exit(4)", 4, hangs=True),
    _py("interrupted", "raise KeyboardInterrupt", 130),
    _py("closes all", "os.closerange(0, 256)\nos._exit(7)", 7),
    _py(
        "children",
        "for _ in range(20):\n    if os.fork() == 0:\n        signal.signal(15, signal.SIG_IGN)\n        time.sleep(1000)\nsys.exit(8)",
        8,
    ),
    _py(
        "daemon",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)\nos.wait()",
        0,
    ),
    _py("broken record", "open(D + '/failure.json', 'w').write('[' * 100000)\nsys.exit(9)", 9),
    _py("long line", "sys.stdout.write('x' * 5_000_000)\nraise ValueError('y' * 1_000_000)", 1),
    _py("heartbeat", "from launcher import beat\nfor step in range(5):\n    beat(step=step)\n    time.sleep(0.05)", 0),
    _py("odd exception", "class Odd(Exception):\n    def __str__(self): raise self\nraise Odd", 1),
    _py(
        "memory",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nx = bytearray(1 << 30)",
        1,
        134,
        139,
        127,
    ),
)
