"""Every environment variable that tlaunch reads or writes, by name, in one file."""

from __future__ import annotations

import re

# --- what a rank of a MindSpore script reads ---
DEVICE_ID = "DEVICE_ID"  # the table's physical id, not the local index
RANK_ID = "RANK_ID"
RANK_SIZE = "RANK_SIZE"
RANK_TABLE_FILE = "RANK_TABLE_FILE"  # absolute path

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

# --- tlaunch's own, for the bundled trainer and for any script that wants them ---
TLAUNCH_RUN_DIR = "TLAUNCH_RUN_DIR"  # absolute path of the run directory
TLAUNCH_RUN_ID = "TLAUNCH_RUN_ID"  # the run directory's name; inherited by every descendant of a rank
TLAUNCH_DP = "TLAUNCH_DP"
TLAUNCH_MP = "TLAUNCH_MP"
TLAUNCH_PP = "TLAUNCH_PP"
TLAUNCH_MICRO_BATCHES = "TLAUNCH_MICRO_BATCHES"

# --- what tlaunch itself reads ---
TLAUNCH_RUNS_DIR = "TLAUNCH_RUNS_DIR"  # default of --runs-dir
TLAUNCH_CACHE_DIR = "TLAUNCH_CACHE_DIR"  # default: $XDG_CACHE_HOME/tlaunch or ~/.cache/tlaunch

SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASS(WORD|WD|PHRASE)|_PASS$|^PASS$|_PW$|_PWD$|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|SALT"
    r"|CONNECTION_STRING|DSN$|_SAS$",
    re.IGNORECASE,
)
URL_PASSWORD = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s@/]+@")
MASK = "********"


def masked(name: str, value: str) -> str:
    """`value` as it may be shown: wholly masked when `name` looks secret, passwords inside URLs masked always.

    >>> masked("HF_TOKEN", "abc"), masked("PROXY", "http://me:pw@host:80")
    ('********', 'http://me:********@host:80')
    """
    if value and SECRET_NAME.search(name):
        return MASK
    return URL_PASSWORD.sub(rf"\g<scheme>:{MASK}@", value)
