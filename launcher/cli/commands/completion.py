"""`tlaunch completion`: print a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from launcher.cli.text.stdout import write_out

EPILOG = """\b
Examples:
  eval "$(tlaunch completion bash)"                     in ~/.bashrc
  eval "$(tlaunch completion zsh)"                      in ~/.zshrc
  tlaunch completion fish > ~/.config/fish/completions/tlaunch.fish

Exit codes: 0; 2 wrong usage.
"""
PROGRAM, VARIABLE = "tlaunch", "_TLAUNCH_COMPLETE"  # click reads the variable during completion


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell script that completes commands, options and runs."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    write_out(f"{kind(context.find_root().command, {}, PROGRAM, VARIABLE).source().rstrip()}\n")
