"""Names of the environment variables that tlaunch and ranks use. Variables of engines are defined with the engines."""

from __future__ import annotations

# --- read by ranks of MindSpore scripts ---
DEVICE_ID = "DEVICE_ID"  # the physical id in the table, not the local index
RANK_ID = "RANK_ID"
RANK_SIZE = "RANK_SIZE"
RANK_TABLE_FILE = "RANK_TABLE_FILE"  # absolute path

# --- read by ranks of MindSpore scripts that use MindSpore's scheduler ---
MS_ROLE = "MS_ROLE"
MS_WORKER_NUM = "MS_WORKER_NUM"  # the number of ranks
MS_SCHED_HOST = "MS_SCHED_HOST"  # an IP address: MindSpore does not resolve names
MS_SCHED_PORT = "MS_SCHED_PORT"
MS_NODE_ID = "MS_NODE_ID"  # the rank

# --- read by ranks of `env://` scripts, with the names of torchrun ---
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
GOMP_SPINCOUNT = "GOMP_SPINCOUNT"  # for GNU OpenMP, as in torch's CPU wheels; overrides OMP_WAIT_POLICY

TORCHELASTIC_RUN_ID = "TORCHELASTIC_RUN_ID"  # if set, torch.distributed.is_torchelastic_launched() is true
TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # the attempt's number, from 0
TORCHELASTIC_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"

# --- read by Python ---
PYTHONBREAKPOINT = "PYTHONBREAKPOINT"  # 0: `breakpoint()` does nothing
PYTHONUNBUFFERED = "PYTHONUNBUFFERED"  # lines appear in train.log as they are printed
PYTHONSAFEPATH = "PYTHONSAFEPATH"  # files in the current directory do not shadow installed modules

# --- tlaunch's variables for the bundled trainer and any other script ---
TLAUNCH_RUN_DIR = "TLAUNCH_RUN_DIR"  # absolute path of the run directory
TLAUNCH_RUN_ID = "TLAUNCH_RUN_ID"  # the run directory's name; inherited by every descendant of a rank
TLAUNCH_DP = "TLAUNCH_DP"
TLAUNCH_MP = "TLAUNCH_MP"
TLAUNCH_PP = "TLAUNCH_PP"
TLAUNCH_MICRO_BATCHES = "TLAUNCH_MICRO_BATCHES"
TLAUNCH_ATTEMPT = "TLAUNCH_ATTEMPT"  # 0 at the first start, 1 after the first restart, ...
TLAUNCH_MAX_RESTARTS = "TLAUNCH_MAX_RESTARTS"
TLAUNCH_HEARTBEAT_FILE = "TLAUNCH_HEARTBEAT_FILE"  # see launcher/core/heartbeat.py

# --- read by tlaunch ---
TLAUNCH_RUNS_DIR = "TLAUNCH_RUNS_DIR"  # default of --runs-dir
TLAUNCH_NO_CONFIG = "TLAUNCH_NO_CONFIG"  # default of --no-config: ignore the project's configuration file
TLAUNCH_SAFE_DIRECTORY = "TLAUNCH_SAFE_DIRECTORY"  # DIR:DIR or *: project files there may belong to another user
TLAUNCH_MAX_TABLE_SIZE = "TLAUNCH_MAX_TABLE_SIZE"  # maximum size of a rank table, for example 100M
TLAUNCH_SERVER = "TLAUNCH_SERVER"  # default of --server: this machine's server in the rank table
TLAUNCH_COORDINATOR = "TLAUNCH_COORDINATOR"  # for agents: addresses of the coordinator, HOST:PORT,HOST:PORT,...
TLAUNCH_COORDINATOR_TOKEN = "TLAUNCH_COORDINATOR_TOKEN"  # proves that agent and coordinator share a run  # noqa: S105
TLAUNCH_JOIN_S = "TLAUNCH_JOIN_S"  # for agents: how long to try to reach the coordinator, in seconds
TLAUNCH_MEMBERS = "TLAUNCH_MEMBERS"  # if an engine starts one process per rank: see cluster/mpi_ranks.py
TLAUNCH_CACHE_DIR = "TLAUNCH_CACHE_DIR"  # default: $XDG_CACHE_HOME/tlaunch or ~/.cache/tlaunch
