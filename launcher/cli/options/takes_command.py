"""The class of commands that may end in `-- COMMAND`, and refuse a `--` with nothing after it."""

from __future__ import annotations

import click

from launcher.core.errors import UsageError


class TakesCommand(click.Command):
    """Tells `--` with nothing after it from no `--` at all, which click takes for the same.

    In a script the words after it may come from a variable that is empty, and nobody means the bundled trainer then.
    """

    without = "start the bundled trainer"  # what such a command is to do

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ends_there = args[-1:] == ["--"]  # looked for first: click takes the words out of `args`
        rest = super().parse_args(ctx, args)
        if ends_there and not ctx.params["command"] and not ctx.resilient_parsing:
            raise UsageError(
                "nothing stands after --, where COMMAND is expected",
                hint=f"name the program (an empty variable?), or leave -- out to {self.without}",
            )
        return rest
