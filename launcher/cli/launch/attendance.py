"""What the command does while a run goes on, until nothing of it is left."""

from __future__ import annotations

from launcher.cli.launch.detach import Announcing, Detached
from launcher.cli.text import summary
from launcher.cli.text.console import Console
from launcher.cluster.launcher_loop import LauncherLoop
from launcher.core.records import RunSpec
from launcher.engines.local import LocalAgent


class Attendance:
    """The command while a run goes on: it passes signals down, shows what happens, and prints how the run ended.

    It is for one local run, or for this server's part of one. Make it inside `signals_held_back`, right after
    `start_agent`.
    """

    def __init__(
        self, spec: RunSpec, agent: LocalAgent, detached: Detached | None, server_index: int | None = None
    ) -> None:
        """`server_index`: of this machine, where only its ranks are attended here."""
        self._spec = spec
        self._server_index = server_index
        self._console = Console(spec, server_index)
        observer = self._console if detached is None else Announcing(self._console, detached)
        self._head = LauncherLoop(spec, agent, observer, server_index)

    def attend(self) -> int:
        """Block until nothing of the run is left, and return its exit code."""
        exit_code = self._head.attend()
        console = self._console
        console.finish(lambda: summary.render(console.progress, self._spec, console.shown_dir, self._server_index))
        return exit_code
