"""What was asked of `tlaunch logs`, checked before any log is read."""

from __future__ import annotations

import string
import time
from collections.abc import Collection

from launcher.cli.log_format import Look
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.logs.levels import level_named
from launcher.logs.select import Matcher, Selector, moment, ranks_of
from launcher.runs.live import RunState
from launcher.runs.recorded import Place

FIRST_FAILED = "first-failed"
PREFIX_FIELDS = ("global_rank", "local_rank", "server", "device", "time")
NOT_FOLLOWED = ("errors", "environment", "until")


@frozen
class LogOptions:
    follow: bool
    lines: int | None
    rank_expression: str
    server: str | None
    since: str | None
    until: str | None
    grep: str | None
    after: int
    before: int
    around: int
    level: str | None
    errors: bool
    merged: bool
    collapsed: bool
    prefix: str | None
    as_json: bool
    environment: bool
    color: bool | None
    exit_code: bool

    def check(self) -> None:
        """Raises UsageError for what does not go together, and for a prefix with unknown fields."""
        if self.follow:
            for name in NOT_FOLLOWED:
                if getattr(self, name):
                    raise UsageError(f"--{'env' if name == 'environment' else name} cannot be followed")
        if self.exit_code and not self.follow:
            raise UsageError("--exit-code needs --follow: only then is the end of the run waited for")
        if self.merged and self.collapsed:
            raise UsageError("--merge and --collapse: choose one", hint="collapsed lines are in the order of time too")
        if self.prefix is not None:
            _check_prefix(self.prefix)

    @property
    def look(self) -> Look:
        return Look(prefix=self.prefix, as_json=self.as_json, color=self.color)

    @property
    def plain(self) -> bool:
        """Whether lines are shown one after the other as they are, and nobody needs to look at one."""
        selects = any(each is not None for each in (self.since, self.until, self.grep, self.level))
        arranged = self.merged or self.collapsed or self.as_json or self.errors
        return not (selects or arranged or (self.prefix is not None and "{time" in self.prefix))

    def selector(self) -> Selector:
        """Raises UsageError for a time, level or expression that is none."""
        now_ns = time.time_ns()
        return Selector(
            level=level_named(self.level) if self.level else 0,
            since_ns=moment(self.since, now_ns) if self.since else None,
            until_ns=moment(self.until, now_ns) if self.until else None,
            matches=Matcher(self.grep) if self.grep is not None else None,
            before=max(self.before, self.around),
            after=max(self.after, self.around),
        )

    def chosen_ranks(self, places: Collection[Place], state: RunState) -> tuple[int, ...]:
        """Global ranks, ascending.

        Raises:
            UsageError: there is no such rank or server, or no rank has failed.
        """
        here = {
            place.global_rank for place in places if self.server in {None, place.server_id, str(place.server_index)}
        }
        if not here:
            servers = sorted({place.server_id for place in places})
            raise UsageError(f"this run has no server {self.server!r}", hint=f"servers are {', '.join(servers)}")
        return tuple(sorted(here & set(self._ranks({place.global_rank for place in places}, state))))

    def _ranks(self, known: Collection[int], state: RunState) -> Collection[int]:
        if self.rank_expression.strip() != FIRST_FAILED:
            return ranks_of(self.rank_expression, known)
        failed = [attempt.verdict.culprit for attempt in state.attempts if attempt.verdict is not None]
        culprits = [culprit for culprit in failed if culprit is not None]
        if not culprits:
            raise UsageError("no rank of this run has failed, as far as is known")
        return culprits[-1:]


def _check_prefix(prefix: str) -> None:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(prefix) if name is not None]
    except ValueError as error:
        raise UsageError(f"--prefix {prefix!r} is no template: {error}") from error
    if unknown := [name for name in fields if name not in PREFIX_FIELDS]:
        known = ", ".join(f"{{{name}}}" for name in PREFIX_FIELDS)
        raise UsageError(f"--prefix has no field {{{unknown[0]}}}", hint=f"fields are {known}")
