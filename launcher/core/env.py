"""Every environment variable that tlaunch reads or writes, by name, in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence

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

TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"  # the attempt's number, from 0
TORCHELASTIC_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"

# --- what a Python program reads ---
PYTHONUNBUFFERED = "PYTHONUNBUFFERED"  # lines reach train.log as they are printed

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
TLAUNCH_CACHE_DIR = "TLAUNCH_CACHE_DIR"  # default: $XDG_CACHE_HOME/tlaunch or ~/.cache/tlaunch

SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASS(WORD|WD|PHRASE)|_PASS$|^PASS$|_PW$|_PWD$|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|SALT"
    r"|CONNECTION_STRING|DSN$|_SAS$|_PAT$|^PAT$|JWT|BEARER|WEBHOOK|PASSCODE",
    re.IGNORECASE,
)
# All that stands before the last @ of a URL's authority: a password, or a token as the only word.
URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/]+@")
AUTHORIZATION = re.compile(r"\b(Bearer|Basic) \S+")
MASK = "********"


def masked(name: str, value: str) -> str:
    """`value` as it may be shown: wholly masked when `name` looks secret, credentials inside URLs masked always.

    >>> masked("HF_TOKEN", "abc"), masked("PROXY", "http://me:pw@host:80")
    ('********', 'http://********@host:80')
    """
    if value and SECRET_NAME.search(name):
        return MASK
    return AUTHORIZATION.sub(rf"\1 {MASK}", URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", value))


def masked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command as it may be shown: the values of options whose names look secret, and credentials in URLs, masked.

    >>> masked_argv(["train", "--api-token", "abc", "--password=x", "--lr", "3"])
    ('train', '--api-token', '********', '--password=********', '--lr', '3')
    """
    shown: list[str] = []
    for before, word in zip(("", *argv), argv, strict=False):
        option, equals, value = word.partition("=")
        if equals:
            shown.append(f"{option}={masked(option, value)}")
        elif before.startswith("-") and "=" not in before and not word.startswith("-"):
            shown.append(masked(before, word))
        else:
            shown.append(masked("", word))
    return tuple(shown)
