"""Compare the settings and environments of several runs for a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.checkpoint.model_merge import read_config
from launcher.cli.commands.report.charts import safe
from launcher.cli.commands.report.facts import RunFacts, mapping
from launcher.cli.run_options import DECIDED_BY_TLAUNCH
from launcher.core.errors import TlaunchError
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
        yield from _differing([_compared(environment) for environment in written], "not set")
    else:
        recorded = [mapping(facts.first_rank.get("env")) for facts in runs]
        yield from _differing([_compared(environment) for environment in recorded], "not recorded")


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
    chosen |= {f"supervision.{name}": json.dumps(value) for name, value in mapping(record.get("supervision")).items()}
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


def _compared(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables to compare, with `$` before their names."""
    return {
        f"${name}": str(value)
        for name, value in environment.items()
        if value and not _SESSION.fullmatch(name) and name not in DECIDED_BY_TLAUNCH
    }
