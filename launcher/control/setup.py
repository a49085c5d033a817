"""The setup of a run before it begins, and the meaning of signals to it."""

from __future__ import annotations

import signal
from dataclasses import field

from launcher.core.frozen import frozen
from launcher.core.records import Supervision

ASKS_TO_STOP = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
KILLS_AT_ONCE = signal.SIGQUIT
PAUSES, CONTINUES = signal.SIGTSTP, signal.SIGCONT


@frozen
class Setup:
    server_ids: tuple[str, ...]
    supervision: Supervision = field(default_factory=Supervision)
    first_attempt: int = 0
    first_server: int = 0  # the index of that of rank 0
    brings_all: bool = True  # an engine starts every agent, and can start them anew; else a person starts each
    engine_anew: bool = False  # another attempt needs the engine's processes anew
    evidence_limit_s: float = 0.0  # for all servers to report, from the first report on; 0: no limit
    look_again_s: float = 0.0  # how much longer a server is waited for that may be lost
