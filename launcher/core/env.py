"""The environment variables of tlaunch and of ranks, by name; those of engines stand with the engines."""

from __future__ import annotations

# --- what a rank of a MindSpore script reads ---
DEVICE_ID = "DEVICE_ID"  # the table's physical id, not the local index
RANK_ID = "RANK_ID"
RANK_SIZE = "RANK_SIZE"
RANK_TABLE_FILE = "RANK_TABLE_FILE"  # absolute path

# --- what a rank of a MindSpore script reads that meets the others at a scheduler ---
MS_ROLE = "MS_ROLE"
MS_WORKER_NUM = "MS_WORKER_NUM"  # how many ranks there are
MS_SCHED_HOST = "MS_SCHED_HOST"  # an address: MindSpore looks up no names
MS_SCHED_PORT = "MS_SCHED_PORT"
MS_NODE_ID = "MS_NODE_ID"  # the rank

# --- what a rank of an `env://` script reads (the names are torchrun's) ---
RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
GROUP_RANK = "GROUP_RANK"  # index of the server
GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE"  # number of servers
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
OMP_WAIT_POLICY = "OMP_WAIT_POLICY"
GOMP_SPINCOUNT = "GOMP_SPINCOUNT"  # of GNU's OpenMP, which torch's wheels for CPUs have; outranks OMP_WAIT_POLICY

TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID"  # set: torch.distributed.is_torchelastic_launched() is true
TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # the attempt's number, from 0
TORCHELASTIC_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"

# --- what a Python program reads ---
PYTHONUNBUFFERED = "PYTHONUNBUFFERED"  # lines reach train.log as they are printed
PYTHONSAFEPATH = "PYTHONSAFEPATH"  # files in the current directory are not imported as modules of others

# --- tlaunch's own, for the bundled trainer and for any script that wants them ---
TLAUNCH_RUN_DIR = "TLAUNCH_RUN_DIR"  # absolute path of the run directory
TLAUNCH_RUN_ID = "TLAUNCH_RUN_ID"  # the run directory's name; inherited by every descendant of a rank
TLAUNCH_DP = "TLAUNCH_DP"
TLAUNCH_MP = "TLAUNCH_MP"
TLAUNCH_PP = "TLAUNCH_PP"
TLAUNCH_MICRO_BATCHES = "TLAUNCH_MICRO_BATCHES"
TLAUNCH_ATTEMPT = "TLAUNCH_ATTEMPT"  # 0 at the first start, 1 after the first restart, ...
TLAUNCH_MAX_RESTARTS = "TLAUNCH_MAX_RESTARTS"
TLAUNCH_HEARTBEAT_FILE = "TLAUNCH_HEARTBEAT_FILE"  # see launcher/core/heartbeat.py

# --- what tlaunch itself reads ---
TLAUNCH_RUNS_DIR = "TLAUNCH_RUNS_DIR"  # default of --runs-dir
TLAUNCH_NO_CONFIG = "TLAUNCH_NO_CONFIG"  # default of --no-config: read no options from the project's file
TLAUNCH_SAFE_DIRECTORY = "TLAUNCH_SAFE_DIRECTORY"  # whose project files count if another user owns them: DIR:DIR, or *
TLAUNCH_MAX_TABLE_SIZE = "TLAUNCH_MAX_TABLE_SIZE"  # of the rank tables that are read, 100M for instance
TLAUNCH_SERVER = "TLAUNCH_SERVER"  # default of --server: which server of the rank table this machine is
TLAUNCH_COORDINATOR = "TLAUNCH_COORDINATOR"  # of an agent: where its run is coordinated, HOST:PORT,HOST:PORT,...
TLAUNCH_COORDINATOR_TOKEN = "TLAUNCH_COORDINATOR_TOKEN"  # what proves that both belong to one run  # noqa: S105
TLAUNCH_JOIN_S = "TLAUNCH_JOIN_S"  # of an agent: seconds for which it looks for its coordinator
TLAUNCH_MEMBERS = "TLAUNCH_MEMBERS"  # where an engine starts a process for each rank: see cluster/mpi_ranks.py
TLAUNCH_CACHE_DIR = "TLAUNCH_CACHE_DIR"  # default: $XDG_CACHE_HOME/tlaunch or ~/.cache/tlaunch
