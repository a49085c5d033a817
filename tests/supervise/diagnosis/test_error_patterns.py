"""Own fault or consequence: what messages of communication libraries say of the rank that prints them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.supervise.diagnosis.error_patterns import Kind, of_exception, of_log
from launcher.supervise.diagnosis.failure_files import last_traceback, log_tail

PROGRAM = Path(__file__).parents[2] / "programs" / "blame_gloo.py"
# What the ranks that are not to blame say in each job of the program.
JOBS = {
    "killed": {Kind.PEER_CLOSED},
    "raises": {Kind.PEER_CLOSED},
    "returns": {Kind.PEER_CLOSED},
    "sleeps": {Kind.TIMEOUT, Kind.PEER_CLOSED},  # closed: by the first one that would wait no longer
    "misses-barrier": {Kind.TIMEOUT, Kind.PEER_CLOSED},
    "stays-away": {Kind.RENDEZVOUS, Kind.STORE_LOST},
    "store-never-there": {Kind.RENDEZVOUS},
    "store-dies": {Kind.STORE_LOST},
    "user-timeout": {Kind.PEER_CLOSED},
    "shared-killed": {Kind.PEER_CLOSED},
    "shared-raises": {Kind.PEER_CLOSED},
    "shared-returns": {Kind.PEER_CLOSED},
    "shared-sleeps": {Kind.TIMEOUT, Kind.PEER_CLOSED},
}
BY_RANK_0 = {"store-dies", "store-never-there"}


@pytest.fixture(scope="module")
def gloo_logs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, PROGRAM, directory, *JOBS]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280, check=True)
    statuses = json.loads(ended.stdout)
    assert {job: len(ranks) for job, ranks in statuses.items()} == dict.fromkeys(JOBS, 3)
    return directory


def symptom_of(log):
    found = last_traceback(log, 0)
    return found and of_exception(found.type, found.message, found.text)


@pytest.mark.distributed
@pytest.mark.parametrize("job", JOBS)
def test_ranks_that_lose_another_say_so_in_words_of_gloo_or_the_store_or_shared_memory(gloo_logs, job):
    culprit = 0 if job in BY_RANK_0 else 1
    for rank in {0, 1, 2} - {culprit}:
        symptom = symptom_of(gloo_logs / f"{job}.{rank}")
        assert symptom.kind in JOBS[job], symptom
        assert symptom.certain, symptom
        assert of_log(log_tail(gloo_logs / f"{job}.{rank}", 0)).kind in JOBS[job]


@pytest.mark.distributed
def test_the_culprit_of_a_job_says_nothing_of_the_kind(gloo_logs):
    assert symptom_of(gloo_logs / "raises.1").kind is Kind.OWN_FAULT
    symptom = symptom_of(gloo_logs / "user-timeout.1")
    assert (symptom.kind, symptom.certain) == (Kind.TIMEOUT, False)
    assert symptom_of(gloo_logs / "misses-barrier.0").named == (1,)


@pytest.mark.distributed
def test_ranks_that_share_memory_name_the_one_that_they_lost(gloo_logs):
    for job in ("killed", "raises", "returns"):
        for rank in (0, 2):
            last = log_tail(gloo_logs / f"shared-{job}.{rank}", 0).splitlines()[-1]
            assert last.endswith("PeerLostError: shared memory: connection closed by rank 1")
    symptoms = [symptom_of(gloo_logs / f"shared-sleeps.{rank}") for rank in (0, 2)]
    late = [symptom for symptom in symptoms if symptom.kind is Kind.TIMEOUT]
    assert [(symptom.evidence, symptom.named) for symptom in late] == [
        ("shared memory: timed out after 10 s waiting for rank 1", (1,))
    ] * len(late)
    assert late


USER_FRAMES = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in step\n    get()\n'
TORCH_FRAMES = USER_FRAMES + '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 9, in recv\n    x\n'
BELOW_TORCH = '  File "/v/site-packages/torch/distributed/run.py", line 9, in main\n    x\n' + USER_FRAMES * 4


@pytest.mark.parametrize(("type_name", "message", "traceback", "kind", "certain"), [
    ("ValueError", "no such word", USER_FRAMES, Kind.OWN_FAULT, True),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer", USER_FRAMES, Kind.PEER_CLOSED, False),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer", TORCH_FRAMES, Kind.PEER_CLOSED, True),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer", BELOW_TORCH, Kind.PEER_CLOSED, False),
    ("BrokenPipeError", "[Errno 32] Broken pipe", "", Kind.PEER_CLOSED, False),
    ("TimeoutError", "", "", Kind.TIMEOUT, False),
    ("requests.exceptions.ReadTimeout", "HTTPSConnectionPool(host='x', port=443)", "", Kind.TIMEOUT, False),
    ("urllib.error.URLError", "<urlopen error timed out>", "", Kind.TIMEOUT, False),
    ("ConnectionRefusedError", "[Errno 111] Connection refused", "", Kind.STORE_LOST, False),
    ("torch.distributed.DistNetworkError", "Connection reset by peer", "", Kind.STORE_LOST, True),
    ("DistStoreError", "Socket Timeout", "", Kind.RENDEZVOUS, True),
    ("torch.distributed.DistNetworkError", "failed to listen on any local network address. EADDRINUSE", "",
     Kind.OWN_FAULT, True),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "", Kind.OWN_FAULT, True),
    ("torch.distributed.DistBackendError", ("NCCL error in: x.cpp:1, remote process exited or there was a network "
     "error, NCCL version 2.20.5\nncclRemoteError: A call failed possibly due to a network error"), "",
     Kind.PEER_CLOSED, True),
    ("torch.distributed.DistBackendError", "NCCL error in: x.cpp:1, unhandled system error", "",
     Kind.PEER_CLOSED, False),
    ("torch.distributed.DistBackendError", ("[4] is setting up NCCL communicator and retrieving ncclUniqueId from "
     "[0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"), "",
     Kind.RENDEZVOUS, True),
    ("RuntimeError", ("OPS function error: HcclAllreduce, error code is 6\n[ERROR] ERR01100 OPS call acl api failed."
     "\nEI0006: [PID: 9] Getting socket times out. Reason: Remote Rank did not send the data in time."), "",
     Kind.RENDEZVOUS, True),
    ("RuntimeError", "NPU out of memory. Tried to allocate 2.00 GiB", "", Kind.OWN_FAULT, True),
    ("horovod.common.exceptions.HorovodInternalError", "Horovod has been shut down", "", Kind.PEER_FAILED, True),
    ("RuntimeError", "Launch kernel failed, name:Default/AllReduce-op0", "", Kind.TIMEOUT, True),  # MindSpore
    ("RuntimeError", "Launch kernel failed, name:Default/ReduceSum-op0", "", Kind.OWN_FAULT, True),
    ("RuntimeError", "\n----\n- Kernel error:\n----\nLaunch kernel failed: Default/AllReduce-op0\n", "", Kind.TIMEOUT, True),
    ("RuntimeError", "\n----\n- Kernel error:\n----\nLaunch kernel failed: Default/Cholesky-op0\n", "", Kind.OWN_FAULT, True),
])  # fmt: skip
def test_exceptions_are_sorted_by_their_words_and_their_place(type_name, message, traceback, kind, certain):
    symptom = of_exception(type_name, message, traceback)
    assert (symptom.kind, symptom.certain) == (kind, certain)


NCCL_TIMEOUT = (
    "[rank1]:[E626 06:24:44.90 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=808, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    "[rank1]:[E] [Rank 1] Process group watchdog thread terminated with exception: [Rank 1] Watchdog caught collective\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
CUDA_FAULT = (
    "[rank1]:[E] [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory "
    "access was encountered\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)
NOTIFY_TIMEOUT = (
    "[Error]: The execution of the internal task times out.\nEI0002: [PID: 7] The wait execution of the Notify register "
    "times out. Reason: The Notify register has not received the Notify record from remote rank [{}].base information"
)


@pytest.mark.parametrize(("tail", "kind", "named"), [
    ("step 3 loss 2.1\nTimeoutError while fetching, will retry\n", Kind.OWN_FAULT, ()),
    (NCCL_TIMEOUT, Kind.TIMEOUT, ()),
    (CUDA_FAULT, Kind.OWN_FAULT, ()),
    ("[PG 0 Rank 144] Heartbeat monitor timed out! Process will be terminated", Kind.WATCHDOG, ()),
    (NOTIFY_TIMEOUT.format("unknown"), Kind.TIMEOUT, ()),
    (NOTIFY_TIMEOUT.format(5), Kind.TIMEOUT, (5,)),
    ("The node: 3 is timed out. It may exit with exception, please check this node's log.", Kind.PEER_FAILED, (3,)),
    ("[ERROR] ME(1) Time out nodes are ['3', '12']", Kind.PEER_FAILED, (3, 12)),
    ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.", Kind.PEER_FAILED, (3,)),
    (f"[Rank 0]: Ranks {'7' * 5000}, 2 failed to pass monitoredBarrier in 2000 ms", Kind.TIMEOUT, (2,)),
    ("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms", Kind.TIMEOUT, (1, 2)),
])  # fmt: skip
def test_logs_of_programs_that_abort_are_sorted_by_their_words(tail, kind, named):
    symptom = of_log(tail)
    assert (symptom.kind, symptom.named) == (kind, named)


def test_only_the_beginning_of_a_message_is_searched():
    """A program may raise with a megabyte of text; and no pattern looks at the same text again and again."""
    assert of_exception("RuntimeError", "x" * (1 << 20) + CUDA_FAULT).evidence.startswith("RuntimeError: xxx")
    assert of_exception("RuntimeError", NCCL_TIMEOUT + "x" * (1 << 20)).kind is Kind.TIMEOUT
    assert of_log("x" * (1 << 20) + "gloo/" * 3000).kind is Kind.OWN_FAULT
    assert of_exception("A" * 50_000, "store->get(" * 5000).kind is Kind.OWN_FAULT


def test_a_dead_network_under_gloo_is_no_rank_s_own_fault():
    for reason in ("Connection timed out", "No route to host", "Network is unreachable"):
        words = f"[/build/gloo/transport/tcp/pair.cc:537] Read error [10.77.0.2]:45733: {reason}. This is typically"
        for symptom in (of_exception("RuntimeError", words), of_log(words)):
            assert (symptom.kind, symptom.certain, symptom.evidence) == (Kind.TIMEOUT, True, reason)
