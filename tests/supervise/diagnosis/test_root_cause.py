"""Which rank is to blame: one table for every rule."""

import json
import random
import signal
from dataclasses import asdict, replace

import pytest

from launcher.core.codec import decode
from launcher.core.verdict import Confidence, Verdict
from launcher.logs.tracebacks import find_traceback
from launcher.supervise.diagnosis.evidence import summarize
from launcher.supervise.diagnosis.failure_files import FailureRecord, read_failure
from launcher.supervise.diagnosis.root_cause import RankEvidence, judge
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.rank_ends import LATE_S

START_NS = 1_700_000_000_000_000_000
CERTAIN, LIKELY, UNSURE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.UNSURE
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34185."
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
SLEEPING = RankStack("running", "at data.py:88 in load: time.sleep(30)", "data.py:88 in load")
COMPUTING = RankStack("running", "at model.py:5 in forward", "model.py:5 in forward")
IN_EXECUTOR = RankStack("running", "at train.py:26 in step", "train.py:26 in step", may_wait=True)
WAITING = RankStack(
    "running", "in all_reduce, called at train.py:40 in step", "train.py:40 in step", in_collective=True
)
LEAVING = RankStack("running", "in destroy_process_group, called at train.py:9 in main", in_collective=True)
RECEIVING = RankStack("running", "in recv, called at train.py:50 in step", "train.py:50 in step", in_collective=True)
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
JOINING = RankStack(
    "running", "in init_process_group, called at train.py:2 in main", "train.py:2 in main", in_collective=True
)
NO_NAME = (
    "[W1128 19:38:01.89 socket.cpp:764] [c10d] The IPv6 network addresses of (h1, 29533) cannot be retrieved "
    "(gai error: -3 - Temporary failure in name resolution)."
)
NO_ROUTE = "OSError: [Errno 113] No route to host"
REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
TCP_STORE = (
    "[W1128 19:38:22.31 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29533 - retrying "
    "(try=0, timeout=8000ms, delay=355ms): Ping failed"
)
SILENT = RankStack("silent", "no Python stack; waits in futex")


def at(milliseconds):
    return START_NS + int(milliseconds * 1e6)


def record(milliseconds, type_name="ValueError", message="no such word", **fields):
    fields = {"where": "train.py:88 in step", "kind": "exception", **fields}
    return FailureRecord(time_ns=at(milliseconds), pid=1, type=type_name, message=message, **fields)


def raised(rank, milliseconds, *what, end_ms=None, **fields):
    ended_ms = milliseconds + 50 if end_ms is None else end_ms
    return RankEvidence(rank, 1, at(ended_ms), int(ended_ms * 10), failure=record(milliseconds, *what, **fields))


def lost(rank, milliseconds, message=CLOSED, **fields):
    return raised(rank, milliseconds, "RuntimeError", message, **{"where": "c10d.py:3252 in all_reduce", **fields})


def ended(rank, milliseconds, status, **fields):
    return RankEvidence(rank, status, at(milliseconds), int(milliseconds * 10), **fields)


def unheard(rank):
    return RankEvidence(rank, None, None, None, heard=False)


def living(rank, stack=None, **fields):
    return RankEvidence(rank, None, None, None, stack=stack, **fields)


def joining(rank, words, server=0, times=3):
    """A rank that repeats in its log why it cannot connect."""
    return living(rank, JOINING, log_tail=f"{words}\nanother line\n" * times, server_index=server)


def printed(rank, milliseconds, status, text):
    return ended(rank, milliseconds, status, logged=find_traceback(text), log_tail=text)


def traceback(what, place='File "/a/train.py", line 88, in step'):
    return f'Traceback (most recent call last):\n  File "/a/train.py", line 99, in <module>\n    y\n  {place}\n    x\n{what}\n'


def shown(verdict):
    lines = [f"{verdict.culprit} {verdict.confidence.value}, signature {verdict.signature}: {verdict.reason}"]
    for each in verdict.failures:
        place = f"{each.what} at {each.where}" if each.where else each.what
        after = "" if each.time_ns is None else f"{(each.time_ns - START_NS) / 1e6:g} ms, "
        lines.append(f"{after}rank {each.global_rank} {each.role.value}, status {each.status}: {place}; {each.reason}")
    return "\n".join(lines)


def case(name, culprit, confidence, *evidence, **options):
    return pytest.param(evidence, options, culprit, confidence, id=name)


def own(name, evidence):
    """A rank 3 that failed by itself, while another lost it and a third waits."""
    return case(name, 3, CERTAIN, lost(0, 100), evidence, living(1, WAITING))


def pair(name, confidence, first, second, culprit=2):
    """Two of the same moment are known by the order of their ends."""
    return case(name, culprit, confidence, replace(first, ended_index=0), replace(second, ended_index=1))


def elsewhere(evidence, clock_error_ms):
    return replace(evidence, server_index=1, clock_error_ns=int(clock_error_ms * 1e6))


def lost_in_mpi(rank, milliseconds):
    """Open MPI ended it: neither a record nor a word of it in its log."""
    return ended(rank, milliseconds, 14, open_mpi=True, log_tail="step 7\n", order_known=False)


UNHEARD = (unheard(8), unheard(9))
ALL = {0, 1, 2}
LATE_MS = LATE_S * 1000
HTTP = ("ConnectionResetError", "[Errno 104] Connection reset by peer")
SEGFAULT = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    '  File "/a/train.py", line 9 in step\n  File "/a/train.py", line 1 in <module>\n'
)
WATCHDOG = "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8) ran for 600020 ms\n"
BARRIER = "Rank 2 failed to pass monitoredBarrier in 2000 ms"
KERNEL = f"\n{'-' * 52}\n- Kernel error:\n{'-' * 52}\nLaunch kernel failed: Default/AllReduce-op0\n"  # MindSpore
ABORT = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD"
CAUSES = [
    # A rank failed by itself: the hook tells what, then the end of the log, then the signal or the exit code.
    own("exception", raised(3, 5)),
    own("exception of a package", raised(3, 5, "app.Bad", "a\nb", where=None)),
    own("exit code", ended(3, 5, 7)),
    own("os._exit", ended(3, 5, 7, failure=record(1, None, "", kind="os_exit", status=7))),
    own("signal", ended(3, 5, -11)),
    own("signal, dump in the log", ended(3, 5, -11, log_tail=SEGFAULT)),
    own("signal from outside", ended(3, 5, -9)),
    own("out of memory", ended(3, 5, -9, oom=True)),
    own("signal without a name", ended(3, 5, -40)),
    own("disk full", ended(3, 5, 1, disk_full=True)),
    own("exit code of Open MPI elsewhere", ended(3, 5, 14)),
    own("another exit code under Open MPI", ended(3, 5, 13, open_mpi=True)),
    own("exit under Open MPI", ended(3, 5, 14, open_mpi=True, failure=record(4, None, "", kind="exit", where=None))),
    case("traceback under Open MPI", 3, LIKELY, lost(0, 100),
         replace(printed(3, 5, 14, traceback("ValueError: no")), open_mpi=True)),
    own("other words under Open MPI", ended(3, 5, 14, open_mpi=True, log_tail="CUDA error: out of memory")),
    own("not started", replace(ended(3, 5, 127), exit_reason="no such file")),
    own("traceback in the log", printed(3, 5, 1, traceback("ValueError: no"))),
    case("traceback, and another exit code than Python's", 3, LIKELY, lost(0, 100),
         printed(3, 5, 4, traceback("ValueError: no"))),
    case("traceback from a function on", 3, LIKELY, lost(0, 100),
         printed(3, 5, 1, traceback("ValueError: no").replace("<module>", "main"))),
    own("exit while a traceback is handled",
        replace(printed(3, 5, 1, traceback("KeyError: 'x'")), failure=record(4, "KeyError", "'x'", kind="exit"))),
    own("words after a traceback",
        replace(printed(3, 5, 1, traceback("KeyError: 'x'")), failure=record(4, None, "16 heads", kind="exit"))),
    own("traceback long ago", printed(3, 5, 4, traceback("ValueError: no") + "went on\n" * 50)),
    own("handled exception, then killed", printed(3, 5, -9, traceback("ValueError: handled"))),
    *(own(f"handled exception, then exit code {status}", printed(3, 5, status, traceback("ValueError: handled") + "step 2\n"))
      for status in (130, 134, 137, 143)),
    case("a forwarded signal", None, CERTAIN, ended(1, 5, -10, forwarded=(10,)), ended(0, 6, -10, forwarded=(10,)),
         lost(2, 50)),
    case("a forwarded signal below a shell", None, CERTAIN, ended(1, 5, 138, forwarded=(10,), log_tail="step 1")),
    case("a signal that was not forwarded", 1, CERTAIN, ended(1, 5, -12, forwarded=(10,))),
    case("a failure before a forwarded signal", 2, CERTAIN, raised(2, 5), ended(1, 5000, -10, forwarded=(10,))),
    case("exit after a traceback", 3, LIKELY, lost(0, 100),
         replace(printed(3, 5, 1, traceback("KeyError: 'x'")), failure=record(4, None, "", kind="exit"))),
    case("lines of a shell after a traceback", 3, LIKELY, lost(0, 100),
         printed(3, 5, 1, traceback("ValueError: no") + "run summary\n")),
    case("exit code of its own after a traceback", 3, UNSURE, lost(0, 100),
         printed(3, 5, 4, traceback("ValueError: no") + "went on\n")),
    case("os._exit after a traceback", 3, UNSURE, lost(0, 100),
         replace(printed(3, 5, 4, traceback("ValueError: no") + "went on\n"),
                 failure=record(4, None, "", kind="os_exit", status=4))),
    # Consequences are no cause even if earlier: the end of a killed rank is noticed after its peers have raised.
    case("consequences first", 2, CERTAIN, lost(0, 5), lost(1, 6), ended(2, 90, -signal.SIGKILL), living(3, WAITING)),
    case("still running", 1, CERTAIN, lost(0, 3000, TIMED_OUT), living(1, SLEEPING, failure=record(5))),
    case("watchdog", 1, CERTAIN, ended(0, 5, -6, log_tail=WATCHDOG), living(1, SLEEPING)),
    case("no watchdog", 0, CERTAIN, ended(0, 5, -6, log_tail="free(): invalid pointer\n"), living(1, SLEEPING)),
    case("confession in the log", 1, CERTAIN, ended(0, 5, 1, log_tail=ABORT), ended(1, 6, 1, log_tail=ABORT)),
    case("confession raised", 1, CERTAIN, lost(0, 5), raised(1, 6, "RuntimeError", ABORT)),
    # Of several own faults the first is the cause; how sure that is depends on whose clocks gave the times.
    pair("raised earlier, ended later", CERTAIN, raised(1, 8, end_ms=900), raised(0, 30, "KeyError", "'a'"), 1),
    pair("order of ends", CERTAIN, ended(2, 5, 3), ended(0, 5, 4)),
    pair("order of the other end unknown", LIKELY, ended(2, 5, 3), ended(0, 5, 4, order_known=False)),
    pair("order unknown, times differ", CERTAIN, ended(2, 5, 3), ended(0, 6, 4, order_known=False)),
    pair("end, exception", CERTAIN, ended(2, 5, 3), raised(0, 6)),
    pair("end, exception, clocks differ", LIKELY, ended(2, 5, 3, clock_error_ns=200_000), elsewhere(raised(0, 6), 0.9)),
    pair("end, exception, one clock", CERTAIN, ended(2, 5, 3, clock_error_ns=200_000),
         replace(raised(0, 6), clock_error_ns=900_000)),
    pair("exception, end", LIKELY, raised(2, 5), ended(0, 6, -11)),
    pair("exception, much later end", CERTAIN, raised(2, 5), ended(0, 6 + LATE_MS, -11)),
    pair("exception, end noticed late", LIKELY, raised(2, 5), ended(0, 2005, -11, late_s=2.5)),
    pair("exception, end, clocks agree", CERTAIN, raised(2, 5), elsewhere(ended(0, 14 + LATE_MS, -11), 8.9)),
    pair("exception, end, clocks differ", LIKELY, replace(raised(2, 5), clock_error_ns=200_000),
         elsewhere(ended(0, 14 + LATE_MS, -11), 8.9)),
    case("exception, unknown time", 1, LIKELY, ended(0, 60, 1, failure=replace(record(0), time_ns=None)),
         raised(1, 5, "KeyError", "x"), lost(2, 1)),
    # Ranks that fail alike are one bug: all are causes, and the first by its own time is named.
    case("all alike", 2, CERTAIN, *(raised(rank, 10 + 3 * abs(rank - 2) + rank / 8) for rank in range(8))),
    case("alike much later", 0, CERTAIN, raised(0, 10), raised(1, 60_000)),
    case("disks full alike", 0, CERTAIN, ended(0, 5, 1, disk_full=True), ended(1, 9, 1, disk_full=True),
         living(2, WAITING)),
    case("ends alike", 0, CERTAIN, ended(0, 5, -6), ended(2, 9, -6)),
    case("ends alike, order unknown", 0, LIKELY, ended(0, 5, -6, order_known=False),
         ended(2, 1305, -6, order_known=False)),
    case("exceptions alike, one moment", 0, CERTAIN, raised(0, 5, end_ms=8), raised(2, 5, end_ms=9)),
    # Ranks that Open MPI ends follow from one that failed, or left.
    case("Open MPI, killed", 3, CERTAIN, lost_in_mpi(0, 5), ended(3, 6, -9, order_known=False), lost_in_mpi(1, 7),
         living(2, WAITING)),
    case("Open MPI, one left", 3, LIKELY, lost_in_mpi(1, 50), ended(3, 20, 0), living(0, WAITING), living(2, WAITING)),
    case("Open MPI, cause unknown", 1, UNSURE, lost_in_mpi(1, 50), lost_in_mpi(2, 60), living(0, WAITING)),
    # A doubtful failure (some connection was lost) is the cause only where nothing surer may have come before.
    case("doubtful, alone", 0, LIKELY, raised(0, 5, *HTTP)),
    case("doubtful, consequence", 0, LIKELY, raised(0, 5, *HTTP), lost(1, 8)),
    case("doubtful, ended well", 0, UNSURE, raised(0, 5, *HTTP), ended(1, 1, 0)),
    case("doubtful, stopped", 0, UNSURE, raised(0, 5, *HTTP), living(1, STOPPED)),
    case("doubtful, later exception", 0, LIKELY, raised(0, 5, *HTTP), raised(1, 8)),
    case("doubtful, signal", 1, CERTAIN, raised(0, 5, *HTTP), ended(1, 9, -11)),
    case("doubtful, signal noticed late", 1, LIKELY, raised(0, 5, *HTTP), ended(1, 3000, -11, late_s=3.5)),
    case("doubtful, exception, signal", 1, LIKELY, raised(0, 5, *HTTP), raised(2, 8), ended(1, 9, -11)),
    case("doubtful, exception, much later signal", 0, LIKELY, raised(0, 5, *HTTP), raised(2, 8), ended(1, 3000, -11)),
    case("doubtful beside a busy rank", 2, CERTAIN, lost(0, 5), raised(1, 9, *HTTP), living(2, SLEEPING)),
    case("doubtful in the log", 1, LIKELY, lost(0, 5), printed(1, 9, 1, traceback(": ".join(HTTP))),
         living(2, WAITING)),
    case("doubtful, clocks agree", 1, CERTAIN, elsewhere(raised(0, 8, *HTTP), 1), raised(1, 5)),
    case("doubtful, clocks differ", 1, LIKELY, elsewhere(raised(0, 8, *HTTP), 9), raised(1, 5)),
    # Only consequences: a rank that is stopped, busy, gone too early, named by others, or behind, in this order.
    case("busy", 1, CERTAIN, lost(0, 3000, TIMED_OUT), living(1, SLEEPING), living(2, WAITING), living(3, WAITING)),
    case("busy, another unknown", 1, LIKELY, lost(0, 3000, TIMED_OUT), living(1, SLEEPING), living(2)),
    case("stopped", 1, CERTAIN, lost(0, 3000, TIMED_OUT), living(1, STOPPED), living(2, COMPUTING)),
    case("stopped, others in a library of C", 1, CERTAIN, ended(0, 3000, -signal.SIGTERM, meets_scheduler=True),
         living(1, STOPPED), living(2, COMPUTING), living(3, COMPUTING)),
    case("busy, another where one gave up", 1, CERTAIN,
         raised(0, 3000, "RuntimeError", KERNEL, where=COMPUTING.place), living(1, SLEEPING), living(2, COMPUTING)),
    case("kernels alike", 1, CERTAIN, lost(0, 3000, KERNEL), living(1, SLEEPING), lost(2, 3001, KERNEL)),
    case("kernel, ended early", 1, LIKELY, lost(0, 30, KERNEL), ended(1, 20, 0)),
    case("two busy", 2, UNSURE, lost(0, 3000, TIMED_OUT), living(1, SLEEPING, step=4), living(2, COMPUTING, step=3)),
    case("behind", 1, LIKELY, lost(0, 3000, TIMED_OUT), living(1, WAITING, step=4), living(2, WAITING, step=5)),
    case("silent", 1, LIKELY, lost(0, 3000, TIMED_OUT), living(1, SILENT), living(2, WAITING)),
    case("named by another", 2, LIKELY, lost(0, 3000, BARRIER), living(1), living(2)),
    case("ended early", 1, LIKELY, lost(0, 30), ended(1, 20, 0), living(2, WAITING)),
    case("ended early, one computes", 1, LIKELY, lost(0, 30), ended(1, 20, 0), living(2, COMPUTING)),
    case("two ended early", 2, UNSURE, lost(0, 30), ended(1, 20, 0), ended(2, 10, 0), living(3, WAITING)),
    case("leaves the group", 1, LIKELY, lost(0, 30), living(1, LEAVING), living(2, WAITING)),
    case("interrupted", 1, CERTAIN, lost(0, 4000, "[c10d] Interrupted system call"), living(1, SLEEPING),
         living(2, WAITING)),
    case("closed, one ended later, one busy", 2, LIKELY, lost(0, 30), ended(1, 5000, 0), living(2, SLEEPING)),
    # Where no rank is missed, the first consequence stands for an unknown cause: no signature.
    case("no rank missed", 1, UNSURE, lost(0, 9), lost(1, 5), living(2, WAITING)),
    case("all others ended well", 0, UNSURE, lost(0, 30), ended(1, 20, 0), ended(2, 10, 0)),
    # Hangs: the rank that stands out, if one does.
    case("hang, all wait", None, UNSURE, living(0, WAITING), living(1, WAITING), hung=ALL),
    case("hang, another collective", 1, LIKELY, living(0, WAITING), living(1, RECEIVING), living(2, WAITING), hung=ALL),
    case("hang, two collectives", None, UNSURE, living(0, WAITING), living(1, RECEIVING), hung=ALL),
    case("hang, ended", 1, LIKELY, living(0, WAITING), ended(1, 5, 0), hung=ALL),
    case("hang, alone and busy", 0, LIKELY, living(0, SLEEPING), hung=ALL),
    case("hang, alone and waiting", 0, UNSURE, living(0, WAITING), hung=ALL),
    case("hang, alone and unknown", 0, LIKELY, living(0), hung=ALL),
    case("hang, one elsewhere", 1, LIKELY, living(0, COMPUTING), living(1, SLEEPING), living(2, COMPUTING), hung=ALL),
    case("hang, two at two places", None, UNSURE, living(0, COMPUTING), living(1, SLEEPING), living(2, COMPUTING),
         living(3, SLEEPING),
         hung=ALL),
    case("hang, two busy ranks", None, UNSURE, living(0, COMPUTING), living(1, SLEEPING), hung=ALL),
    case("hang, two busy ranks, one behind", 1, UNSURE, living(0, COMPUTING, step=3), living(1, SLEEPING, step=2),
         hung=ALL),
    case("hang, one in a library that may wait", 1, LIKELY, living(0, IN_EXECUTOR), living(1, SLEEPING), hung=ALL),
    case("hang, all in a library that may wait", None, UNSURE, living(0, IN_EXECUTOR),
         living(1, replace(IN_EXECUTOR, doing="at train.py:9 in step", place="train.py:9 in step")), hung=ALL),
    case("one hangs, silent", 1, LIKELY, living(0), living(1, SILENT), living(2), hung={1}),
    case("one hangs, waiting", None, UNSURE, living(0, SILENT), living(1, WAITING), living(2, SILENT), hung={1}),
    case("one hangs, others ended", 1, LIKELY, ended(0, 0, 0), living(1, SILENT), hung={1}),
    case("one of several busy hangs", 1, LIKELY, living(0, COMPUTING), living(1, SLEEPING), living(2, WAITING),
         hung={1}),
    # Logs of ranks that join, all on one server where none is given.
    case("joining, one knows no name", 2, LIKELY, living(0, JOINING), living(1, JOINING), joining(2, NO_NAME), hung={1}),
    case("joining, a server knows no name", 2, LIKELY, living(0, JOINING), living(1, JOINING),
         joining(2, NO_NAME, 1), joining(3, NO_NAME, 1), hung={0, 1, 2, 3}),
    case("joining, two servers know no name", 2, UNSURE, living(0, JOINING), living(1, JOINING),
         joining(2, NO_NAME, 1), joining(3, NO_NAME, 2), hung={0, 1, 2, 3}),
    case("joining, none reaches rank 0", 0, LIKELY, living(0, JOINING), joining(1, NO_ROUTE), joining(2, NO_ROUTE, 1),
         hung=ALL),
    case("joining, the only other one", 1, LIKELY, living(0, JOINING), joining(1, TCP_STORE, 1), hung=ALL),
    case("joining, rank 0 is late", 0, CERTAIN, living(0, SLEEPING), joining(1, REFUSED), joining(2, REFUSED), hung=ALL),
    case("joining, names without IPv6 addresses", None, UNSURE, living(0, JOINING), joining(1, NO_NAME, times=2),
         joining(2, NO_NAME, times=2), hung=ALL),
    case("joined, a tracker is not reached", None, UNSURE, living(0, WAITING),
         living(1, WAITING, log_tail=f"{REFUSED}\n" * 9), living(2, WAITING), hung=ALL),
    case("neither failures nor hangs", None, UNSURE, living(0, SLEEPING), ended(1, 5, 0)),
    case("no ranks", None, UNSURE),
    # Ranks that were not heard may not have taken part either; but one that is stopped or at fault is enough.
    case("unheard, busy, timeout", 1, UNSURE, lost(0, 3000, TIMED_OUT), living(1, SLEEPING), *UNHEARD, hung={1}),
    case("unheard, busy", 1, UNSURE, living(0, WAITING), living(1, SLEEPING), *UNHEARD, hung={1}),
    case("unheard, stopped", 1, LIKELY, living(0, WAITING), living(1, STOPPED), *UNHEARD, hung={1}),
    case("unheard, doubtful", 0, UNSURE, raised(0, 5, *HTTP), living(1, WAITING), *UNHEARD, hung={1}),
    case("unheard, own fault", 0, CERTAIN, raised(0, 5), unheard(1)),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "options", "culprit", "confidence"), CAUSES)
def test_the_rank_to_blame(evidence, options, culprit, confidence, snapshot):
    verdict = judge(evidence, **options)
    assert (verdict.culprit, verdict.confidence) == (culprit, confidence)
    assert shown(verdict) == snapshot
    assert judge(evidence[::-1], **options) == verdict
    assert decode(Verdict, json.loads(json.dumps(asdict(verdict)))) == verdict


# --- whatever ranks left behind ---

ODD_NUMBERS = ("0", "-1", "1e400", "-1e400", "NaN", "1.5", "1" + "0" * 400, "9" * 5000, "true", "null", '"1"', "[]")
ODD_TEXTS = (
    "null", "7", "{}", '""', '"ValueError"', '"\\n\\n"', '"\\ud800"', '"\\u0000:"', '" in "', '":"', '"..."',
    f'"Ranks {"1" * 5000} failed to pass monitoredBarrier"', '"Time out nodes are [\'٣\']"', json.dumps(traceback("E")),
)  # fmt: skip


def odd_record(source):
    fields = {"pid": "1", "time_ns": str(START_NS), "status": "1", "kind": '"exception"', "type": '"ValueError"'}
    for name in source.sample(["time_ns", "status"], source.randint(0, 2)):
        fields[name] = source.choice(ODD_NUMBERS)
    for name in ("kind", "type", "message", "where", "traceback", "thread"):
        if source.random() < 0.4:
            fields[name] = source.choice(ODD_TEXTS)
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def test_no_record_can_keep_the_verdict_from_being_told(tmp_path):
    source, path = random.Random(3), tmp_path / "failure.json"
    read = 0
    for _ in range(120):
        evidence = []
        for rank in range(3):
            path.write_text(odd_record(source))
            failure = read_failure(path, pid=1)
            read += failure is not None
            status = source.choice([None, 1, -9, -6, 0, 255, -64])
            text = traceback(json.loads(source.choice(ODD_TEXTS)))
            evidence.append(ended(rank, rank, status, failure=failure, log_tail=text, logged=find_traceback(text)))
        verdict = judge(evidence, hung=(1,))
        assert decode(Verdict, json.loads(json.dumps(asdict(verdict)))) == verdict
    assert read > 120


def test_a_program_that_exits_by_itself_is_told_by_its_own_words():
    said = summarize(ended(0, 5, 2, log_tail="usage: ddp.py [--lr LR]\nddp.py: error: no --lrr\n\n"))
    assert said.what == "exit code 2: ddp.py: error: no --lrr"
    said = summarize(ended(0, 5, 2, log_tail="Error: no such file\nhint: look\n"))
    assert said.what == "exit code 2: Error: no such file"
    assert summarize(ended(0, 5, 2, log_tail="error: long ago\n" + "step\n" * 5)).what == "exit code 2"
