"""Compare the settings and environments of several runs for a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.checkpoint.model_merge import read_config
from launcher.cli.commands.report.charts import safe
from launcher.cli.commands.report.facts import RunFacts, mapping
from launcher.cli.run_options import DECIDED_BY_TLAUNCH
from launcher.cli.text.run_status_line import is_own_module
from launcher.cli.text.verdict_text import signal_name
from launcher.core.codec import decode
from launcher.core.errors import TlaunchError
from launcher.core.records import Supervision
from launcher.core.regular_files import read_regular
from launcher.core.run_dir import RunDir
from launcher.core.text import shell_words
from launcher.logs.terminal import shortened
from launcher.recipes.load import read_settings
from launcher.recipes.settings import as_toml

MAX_ENV_BYTES = 4 << 20
# Variables that differ between any two runs, or between two shells.
_SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|WINDOWID|DISPLAY|STY|TERM.*|TMUX.*|TORCHELASTIC_.*|TLAUNCH_.*"
    r"|(DBUS|GPG|LSB|OMPI|PBS|PMI|PMIX|SLURM|SSH|VSCODE|XDG)_.*"
)


def differences(runs: Sequence[RunFacts]) -> Iterator[tuple[str, list[str]]]:
    """Yield the settings and variables that differ between runs, with a value for each run."""
    settings = [_settings(facts) for facts in runs]
    yield from _differing(settings, "not given")
    written = [_written_environment(facts.state.run_dir) for facts in runs]
    if all(written):
        missing = "not set"
    else:
        written = [mapping(facts.first_rank.get("env")) for facts in runs]
        missing = "not recorded"
    owns = [facts.state.run_dir.root.name for facts in runs]
    yield from _differing([_compared(each, own) for each, own in zip(written, owns, strict=True)], missing)


def _differing(runs: Sequence[Mapping[str, str]], missing: str) -> Iterator[tuple[str, list[str]]]:
    for name in dict.fromkeys(name for each in runs for name in each):
        values = [shortened(safe(each.get(name, missing))) for each in runs]
        if len(set(values)) > 1:
            yield name, values


def _settings(facts: RunFacts) -> dict[str, str]:
    """Return the run's settings by name, such as its layout and command."""
    record = facts.record
    chosen = {"ranks": str(facts.state.progress.rank_count)}
    chosen |= {f"layout.{name}": str(value) for name, value in mapping(record.get("layout")).items()}
    chosen |= dict(rules_of(facts))
    chosen["rank table"] = str(mapping(record.get("cluster")).get("source") or "none")
    chosen["working directory"] = str(record.get("cwd", ""))
    command, sets = [], {}
    words = iter(facts.command)
    for word in words:
        if word == "--set":
            name, _, value = next(words, "").partition("=")
            sets[name] = value
        else:
            command.append(word)
    resolved = {name: as_toml(value) for name, value in _resolved(facts.state.run_dir).items()}
    return {**chosen, "command": shell_words(command), **(resolved or sets)}


def rules_of(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield the settings of the run's supervision that are set, in the words of the options."""
    with suppress(ValueError):
        rules = decode(Supervision, facts.record.get("supervision"))
        times = (
            ("grace period", rules.grace_s), ("hang timeout", rules.hang_timeout_s), ("time limit", rules.time_limit_s),
        )  # fmt: skip
        yield from ((name, f"{seconds:g} s") for name, seconds in times if seconds is not None)
        if rules.max_restarts:
            yield "restarts", f"at most {rules.max_restarts}"
        if rules.elastic is not None:
            yield "elastic", "yes"
        if rules.forward_signals:
            yield "forwarded signals", ", ".join(map(signal_name, rules.forward_signals))
        if modules := [name for name in rules.preload or () if not is_own_module(name)]:
            yield "preloaded modules", ", ".join(modules)


def _resolved(run_dir: RunDir) -> Mapping[str, Any]:
    """Return all settings of the bundled trainer, as recorded at the start or with the model, or an empty mapping."""
    if found := read_settings(run_dir.settings):
        return found
    with suppress(TlaunchError):
        sections = read_config(run_dir.model)[1]
        return {f"{section}.{name}": value for section, entries in sections.items() for name, value in entries.items()}
    return {}


def _written_environment(run_dir: RunDir) -> Mapping[str, str]:
    """Return the environment of rank 0, with secrets masked, or an empty mapping if its env.log cannot be read."""
    with suppress(OSError):
        text = read_regular(run_dir.env_log(0), MAX_ENV_BYTES).decode(errors="replace")
        pairs = (line.partition("=") for line in text.splitlines())
        return {name: value for name, separator, value in pairs if separator}
    return {}


def _compared(environment: Mapping[str, Any], own: str) -> dict[str, str]:
    """Return the variables to compare, with `$` before their names. Leave out values with the run's `own` name."""
    return {
        f"${name}": str(value)
        for name, value in environment.items()
        if value and own not in str(value) and not _SESSION.fullmatch(name) and name not in DECIDED_BY_TLAUNCH
    }
