"""The options of `tlaunch logs`, and their checks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from launcher.cli.text.log_format import LineOptions
from launcher.cli.text.log_prefix import prefix_fields, shows_rank, shows_time
from launcher.cli.text.run_text import self_reported_verdict
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.text import ranges
from launcher.logs.levels import level_named
from launcher.logs.select import Matcher, Selector, moment, ranks_of
from launcher.runs.record import RankPlace, Recorded
from launcher.runs.status import RunState

ALL, FAILED = "all", "failed"
# The fields of --prefix, each with an example value.
PREFIX_FIELDS = {"global_rank": 0, "local_rank": 0, "server": "10.0.0.1", "device": 0, "time": "12:00:00"}
NOT_FOLLOWED = ("errors", "environment", "until")
NOT_WITH_ERRORS = ("lines", "since", "until", "grep", "exclude", "level", "merged", "collapsed")
NOT_WITH_PREFIX = ("collapsed", "as_json", "errors")
NOT_WITH_TIMESTAMPS = ("prefix", *NOT_WITH_PREFIX)
NOT_WITH_SCHEDULER = ("server", "environment", "errors", "merged", "collapsed", "prefix", "as_json")
# Field: its option, if the names differ.
NAMES = {"environment": "env", "merged": "merge", "collapsed": "collapse", "as_json": "json"}


@frozen
class LogOptions:
    follow: bool
    lines: int | None
    rank_expression: str
    server: str | None
    since: str | None
    until: str | None
    grep: tuple[str, ...]
    ignore_case: bool
    exclude: tuple[str, ...]
    highlight: tuple[str, ...]
    level: str | None
    errors: bool
    merged: bool
    collapsed: bool
    prefix: str | None
    timestamps: bool
    as_json: bool
    environment: bool
    attempt: int | None
    scheduler: bool
    color: bool | None
    exit_code: bool
    by_attempt: bool = False  # the run is elastic: a rank's device depends on the attempt

    def check(self) -> None:
        """Raise UsageError if options cannot be combined, or if the prefix has unknown fields."""
        if self.follow:
            self._refuse(NOT_FOLLOWED, "cannot be combined with --follow")
        if self.exit_code and not self.follow:
            raise UsageError("--exit-code needs --follow: without it, `logs` does not wait for the run to end")
        if self.merged and self.collapsed:
            hint = "use --collapse; it sorts lines by time, too"
            raise UsageError("--merge and --collapse cannot be combined", hint=hint)
        if self.errors:
            why = "cannot be combined with --errors, which shows only the first traceback of each rank"
            self._refuse(NOT_WITH_ERRORS, why)
        if self.ignore_case and not (self.grep or self.exclude or self.highlight):
            raise UsageError("--ignore-case needs --grep, --exclude or --highlight")
        if self.as_json:
            self._refuse(("highlight",), "cannot be combined with --json, which does not change the text")
        self._check_source()
        if self.timestamps:
            self._refuse(NOT_WITH_TIMESTAMPS, "cannot be combined with --timestamps")
        if self.prefix is not None:
            self._check_prefix(self.prefix)

    def _check_source(self) -> None:
        """Raise UsageError if an option cannot be combined with `--scheduler` or `--env`."""
        if self.scheduler:
            why = "cannot be combined with --scheduler, which shows the log of MindSpore's scheduler, not of a rank"
            self._refuse(NOT_WITH_SCHEDULER, why)
            if self.rank_expression != ALL:
                raise UsageError(f"--rank {why}")
        if self.environment and self.attempt is not None:
            raise UsageError("--attempt cannot be combined with --env: each attempt overwrites env.log")

    def check_attempt(self, state: RunState) -> None:
        """Raise UsageError if the run has no attempt with the chosen number."""
        known = [attempt.number for attempt in state.attempts]
        if self.attempt is not None and self.attempt not in known:
            hint = "use `--attempt 0`, its only attempt" if known == [0] else f"choose from {ranges(known)}"
            raise UsageError(f"the run has no attempt {self.attempt}", hint=hint)

    def _check_prefix(self, prefix: str) -> None:
        self._refuse(NOT_WITH_PREFIX, "cannot be combined with --prefix")
        try:
            fields = prefix_fields(prefix)
            if unknown := [name for name, _ in fields if name not in PREFIX_FIELDS]:
                known = ", ".join(f"{{{name}}}" for name in PREFIX_FIELDS)
                raise UsageError(f"--prefix has no field {{{unknown[0]}}}", hint=f"choose from {known}")
            if any("{" in look for _, look in fields):
                raise UsageError(f"--prefix {prefix!r} has nested fields, but a field cannot contain another field")
            prefix.format(**PREFIX_FIELDS)
        except (ValueError, OverflowError, MemoryError) as error:  # MemoryError: a huge width
            raise UsageError(f"--prefix {prefix!r} is not a valid template: {error or 'too long'}") from error

    def _refuse(self, names: Iterable[str], why: str) -> None:
        """Raise UsageError if any of the options `names` was given."""
        for name in names:
            given = getattr(self, name)
            if given is not None and given is not False and given != ():
                raise UsageError(f"--{NAMES.get(name, name)} {why}")

    @property
    def selects(self) -> bool:
        """True if options leave out some lines of the chosen logs."""
        by_server = self.server if self.by_attempt else None
        chosen = (self.since, self.until, self.level, self.attempt, by_server)
        return bool(self.grep or self.exclude) or any(each is not None for each in chosen)

    def line_options(self) -> LineOptions:
        """Return the options for formatting lines. Raises UsageError if a regular expression is invalid."""
        marked = tuple(map(self._matcher, (*self.grep, *self.highlight)))
        return LineOptions(
            self.prefix, timestamps=self.timestamps, as_json=self.as_json, color=self.color, marked=marked
        )

    def _matcher(self, pattern: str) -> Matcher:
        return Matcher(pattern, ignores_case=self.ignore_case)

    @property
    def timed(self) -> bool:
        """True if options need the recorded times of lines."""
        asked = self.since is not None or self.until is not None or self.merged or self.as_json
        return not self.environment and (asked or self.timestamps or shows_time(self.prefix or ""))

    @property
    def plain(self) -> bool:
        """True if the logs can be copied to stdout without parsing lines."""
        arranged = self.merged or self.collapsed or self.as_json or self.errors
        prefix = self.prefix or ""
        timed = self.timestamps or shows_time(prefix)
        return not (self.selects or arranged or timed or (self.by_attempt and shows_rank(prefix)))

    def selector(self) -> Selector:
        """Return a filter for lines. Raises UsageError if a time, level or regular expression is invalid."""
        now_ns = time.time_ns()
        return Selector(
            level=level_named(self.level) if self.level is not None else 0,
            since_ns=moment(self.since, now_ns) if self.since is not None else None,
            until_ns=moment(self.until, now_ns, is_end=True) if self.until is not None else None,
            matches=list(map(self._matcher, self.grep)),
            excludes=list(map(self._matcher, self.exclude)),
        )

    def is_chosen(self, place: RankPlace) -> bool:
        """Return True if --server selects the device at `place`."""
        return self.server in {None, place.server_id, str(place.server_index)}

    def chosen_ranks(self, recorded: Recorded, state: RunState) -> tuple[int, ...]:
        """Return the global ranks of the logs to read, in ascending order.

        Raises UsageError if the rank or server does not exist, or `--rank failed` is given and no rank failed.
        """
        places = recorded.devices or recorded.places
        if not any(map(self.is_chosen, places)):
            servers = sorted({place.server_id for place in places})
            raise UsageError(f"the run has no server {self.server!r}", hint=f"choose from {', '.join(servers)}")
        known = {place.global_rank for place in recorded.places}
        here = known
        if not (self.by_attempt and self.follow):  # a later attempt may move any rank to the server
            attempts = map(recorded.places_in, {attempt.allotment for attempt in state.attempts} or {None})
            here = {place.global_rank for attempt in attempts for place in attempt if self.is_chosen(place)}
        if self.rank_expression.strip() == FAILED:
            verdicts = [noted] if (noted := self_reported_verdict(state)) else [each.verdict for each in state.attempts]
            culprits = [each.culprit for each in verdicts if each is not None and each.culprit is not None]
            if not culprits:
                why = "recorded a failure" if state.engine else "is known to have failed"
                raise UsageError(f"no rank of the run {why}")
            chosen = here & {culprits[-1]}
        else:
            chosen = here & set(ranks_of(self.rank_expression, known))
        if not chosen:
            raise UsageError(f"no rank matches both --rank {self.rank_expression} and --server {self.server}")
        return tuple(sorted(chosen))
