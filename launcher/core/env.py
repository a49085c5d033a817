"""The environment variables of tlaunch and of ranks, by name; those of engines stand with the engines."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
TLAUNCH_FULL_TEARDOWN = "TLAUNCH_FULL_TEARDOWN"  # set: see launcher/preload/ending.py
TLAUNCH_HEARTBEAT_FILE = "TLAUNCH_HEARTBEAT_FILE"  # see launcher/core/heartbeat.py

# --- what tlaunch itself reads ---
TLAUNCH_RUNS_DIR = "TLAUNCH_RUNS_DIR"  # default of --runs-dir
TLAUNCH_NO_CONFIG = "TLAUNCH_NO_CONFIG"  # default of --no-config: read no options from the project's file
TLAUNCH_MAX_TABLE_SIZE = "TLAUNCH_MAX_TABLE_SIZE"  # of the rank tables that are read, 100M for instance
TLAUNCH_SERVER = "TLAUNCH_SERVER"  # default of --server: which server of the rank table this machine is
TLAUNCH_COORDINATOR = "TLAUNCH_COORDINATOR"  # of an agent: where its run is coordinated, HOST:PORT,HOST:PORT,...
TLAUNCH_COORDINATOR_TOKEN = "TLAUNCH_COORDINATOR_TOKEN"  # what proves that both belong to one run  # noqa: S105
TLAUNCH_JOIN_S = "TLAUNCH_JOIN_S"  # of an agent: seconds for which it looks for its coordinator
TLAUNCH_MEMBERS = "TLAUNCH_MEMBERS"  # where an engine starts a process for each rank: see cluster/mpi_ranks.py
TLAUNCH_CACHE_DIR = "TLAUNCH_CACHE_DIR"  # default: $XDG_CACHE_HOME/tlaunch or ~/.cache/tlaunch

# A name is a secret's where one of its words is, or ends like, one of these (ACCESSTOKEN, PGPASSWORD); parts of other
# words (tokenizer, author) say nothing. The words stand between underscores: HF_TOKEN and --hfToken are _HF_TOKEN_.
_SECRET_WORDS = re.compile(
    # Tokens of a text are no secret, nor is their number.
    r"(?<!_(?:EOS|BOS|PAD|SEP|CLS|UNK))(?<!_MASK)_[A-Z0-9]*TOKEN\d*_|_(?:API|ACCESS|AUTH|REFRESH|BEARER|BOT)_?TOKENS_"
    r"|_[A-Z0-9]*(?:SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|WEBHOOK)S?\d*_"
    r"|_(?:API|ACCESS|AUTH|SECRET|PRIVATE|SSH)?KEYS?\d*_|_(?:O?AUTH\d*|AUTHORIZATION|AUTHENTICATION)_"
    r"|_(?:PRIVATE|SIGNATURE|SALT|BEARER|JWT|CONNECTION_?STRING)\d*_|_(?:PASS|PW|DSN|SAS|PAT)_$|[^_]_PWD_$"
)
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
# All that stands before the last @ of a URL's authority: a password, or a token as the only word.
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/]+@")
_SCHEME = r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)"
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic) \S+", re.IGNORECASE)
# A line that is a header, and a member of a JSON object: `X-Api-Key: abc`, `{"api_key": "abc"}`.
_HEADER = re.compile(
    rf"""^(?P<before>[ \t]*(?P<name>[A-Za-z][\w-]*)[ \t]*:[ \t]*(?:{_SCHEME}[ \t]+)?)(?P<value>\S.*)$""",
    re.IGNORECASE | re.MULTILINE,
)
_MEMBER = re.compile(
    r"""(?P<before>(?P<quote>["'])(?P<name>[\w-]+)(?P=quote)\s*:\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,}]+)"""
)
# What a URL passes on behind its ?, and a variable or an option in a line of shell, as of `sh -c`.
_PARAMETER = re.compile(r"""(?P<before>[?&](?P<name>[\w.-]{1,100})=)(?P<value>[^\s&#"']+)""")
_SHELL_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s;&|"'-][^\s;&|"']*)"""
_VARIABLE = re.compile(rf"""(?P<before>(?<![\w.-])(?P<name>[A-Z_][A-Z0-9_]*)=){_SHELL_VALUE}""", re.ASCII)
_OPTION = re.compile(rf"""(?P<before>(?<!\S)(?P<name>--?[A-Za-z][\w-]*)(?:=|[ \t]+)){_SHELL_VALUE}""", re.ASCII)
# Tokens that their issuers (Hugging Face, OpenAI, GitHub, GitLab, AWS) have begin so that they are known without a name.
_KNOWN_TOKEN = re.compile(
    r"\b(?:(?:hf_|sk-(?:[a-z0-9]{1,9}-){0,2}|gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9]{20}[\w-]*|AKIA[A-Z0-9]{16}\b)",
    re.ASCII,
)
_SIGNATURE = "sig"  # of a URL that gives access to its holder
_ASSIGNMENT = re.compile(r"(?P<name>[\w.-]+)=")
MASK = "********"


def is_secret(name: str) -> bool:
    """Return True if values of this name, of a variable, an option or a header, have to be masked.

    >>> is_secret("HF_TOKEN"), is_secret("--apiKey"), is_secret("--max-tokens"), is_secret("TOKENIZERS_PARALLELISM")
    (True, True, False, False)
    """
    return _SECRET_WORDS.search(f"_{_BETWEEN_WORDS.sub('_', name).upper().strip('_')}_") is not None


def masked(name: str, value: str) -> str:
    """`value` as it may be shown: wholly masked when `name` looks secret, secrets inside it masked always.

    Those are credentials of URLs, tokens that tell by their beginning what they are, and what stands after a secret's name in a header, a JSON object, a URL's parameters
    or a line of shell.

    >>> masked("HF_TOKEN", "abc"), masked("PROXY", "http://me:pw@host:80"), masked("", "X-Api-Key: abc")
    ('********', 'http://********@host:80', 'X-Api-Key: ********')
    """
    if value and is_secret(name):
        return MASK
    text = _AUTHORIZATION.sub(rf"\1 {MASK}", _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", value))
    for named in (_HEADER, _MEMBER, _PARAMETER, _VARIABLE, _OPTION):
        text = named.sub(_masked_value, text)
    return _KNOWN_TOKEN.sub(MASK, text)


def masked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command as it may be shown: the values of options whose names look secret, and secrets in words, masked.

    >>> masked_argv(["train", "--api-token", "abc", "--password=x", "--env=API_KEY=y", "--max-tokens", "3"])
    ('train', '--api-token', '********', '--password=********', '--env=API_KEY=********', '--max-tokens', '3')
    """
    shown: list[str] = []
    for before, word in zip(("", *argv), argv, strict=False):
        is_value = before.startswith("-") and "=" not in before and not word.startswith("-")
        shown.append(MASK if word and is_value and is_secret(before) else _masked_word(word))
    return tuple(shown)


def _masked_word(word: str) -> str:
    """Return a word with its value masked if the word itself names a secret: --password=x, TOKEN=x, --env=TOKEN=x."""
    start = 0
    while match := _ASSIGNMENT.match(word, start):
        start = match.end()
        if is_secret(match["name"]):
            return word[:start] + (MASK if word[start:] else "")
    return word[:start] + masked("", word[start:])


def _masked_value(match: re.Match[str]) -> str:
    is_signature = match.re is _PARAMETER and match["name"].lower() == _SIGNATURE
    return match["before"] + MASK if is_signature or is_secret(match["name"]) else match[0]
