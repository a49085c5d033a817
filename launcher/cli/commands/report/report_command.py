"""`tlaunch report`: show the results of runs as text, JSON or an HTML page with charts."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from launcher.cli.commands.report.facts import RunFacts, gather
from launcher.cli.commands.report.report_text import to_lines
from launcher.cli.options.chosen_run import RUN_HELP, chosen, chosen_live, json_option, progress_regex_option
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import NAME_OR_PATH
from launcher.cli.text.columns import has_blocks
from launcher.cli.text.output_file import check_replaceable, put
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.stdout import as_argument, say, write_lines, write_out
from launcher.core.codec import json_text
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.text import shell_word
from launcher.logs.terminal import escaped
from launcher.runs.status import look
from launcher.runs.store import find_runs, means_latest

EPILOG = """\b
Examples:
  tlaunch report
  tlaunch report --html report.html
  tlaunch report --html both.html 20261121-053712-transformer 20261121-061210-transformer
  tlaunch report --json | jq '.runs[0].best_validation_loss'
  tlaunch report --live

Loss, tokens/s and memory come from metrics.jsonl in the run directory, which rank 0 of the bundled trainer writes.
Without it, steps and losses are parsed from a rank's output. If steps are short, values such as the final loss are
means of a few steps. Peak memory is measured on rank 0: of its accelerator, else of its process. For a resumed run
(--resume), losses and curves cover the complete training; speed, memory and duration cover only the run itself.

--html needs matplotlib, which draws the charts. The page works without network and scripts. It replaces an earlier
page of `tlaunch report`; other files are replaced only with --force.

--live prints the address of a page that follows a run: the table of `tlaunch top`, curves, and the log of a rank that
you choose. It is served on this machine's loopback interface until the run is over or you press Ctrl-C. Only clients
that know the address can read it. From another machine, run
`ssh -t -L 8000:127.0.0.1:8000 HOST tlaunch report --live --port 8000`.

Exit codes: 0 whether the run succeeded or failed; 2 wrong usage, no such run, FILE is not a page of `tlaunch report`,
or matplotlib is missing; with --live also 2 the run is over, or the port is in use, and 130 Ctrl-C.
"""
STDOUT = "-"
SCHEMA = 1
PLAIN_COLUMNS = 120
PAGE_MARK = "tlaunch report</title>"  # at the beginning of each page


@click.command(
    epilog=EPILOG,
    help=f"Show the results of runs, as text or with charts.\n\nSeveral runs are shown side by side. {RUN_HELP}",
)
@click.option("--html", type=NAME_OR_PATH, metavar="FILE", help="Write a self-contained HTML page. Use - for stdout.")
@click.option("--force", is_flag=True, help="Replace FILE of --html, whatever it contains.")
@click.option("--live", is_flag=True, help="Serve a web page that shows a run until it ends.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Port for --live on the loopback interface.  [default: any free port]",
)  # fmt: skip
@progress_regex_option
@json_option
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
@runs_dir_option
def report(
    *,
    runs: tuple[str, ...],
    html: str | None,
    force: bool,
    live: bool,
    port: int | None,
    progress_regex: str | None,
    as_json: bool,
    runs_dir: Path,
) -> None:
    if force and html is None:
        raise UsageError("--force is only for --html: add --html FILE, or leave out --force")
    if live or port is not None:
        if not live:
            raise UsageError("--port is only for --live: add --live, or leave out --port")
        for option, value in (("--html", html), ("--json", as_json)):
            if value:
                raise UsageError(f"--live and {option}: give one of them")
        _serve(runs, runs_dir, port, progress_regex)
        return
    _check_file(html, as_json=as_json)
    if html not in {None, STDOUT} and not force:
        _check_named_file(html, runs_dir)
    run_dirs = [chosen(runs_dir, run) for run in runs] or [chosen(runs_dir, None)]
    facts = [gather(run_dir, progress_regex) for run_dir in run_dirs]
    if as_json:
        write_out(json_text({"schema": SCHEMA, "runs": [each.to_json() for each in facts]}))
    if html is None and not as_json:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_COLUMNS
        plain = not has_blocks(sys.stdout.encoding)
        write_lines(to_lines(facts, width, plain=plain))
    if html is not None:
        _write_page(facts, html)


def _check_file(html: str | None, *, as_json: bool) -> None:
    """Raise UsageError if the HTML page cannot be written. Call this before any run is read."""
    if html is None:
        return
    if not html or html.endswith(os.sep):
        raise UsageError(f"--html needs a file name{f', not {escaped(html)}' if html else ''}")
    if find_spec("matplotlib") is None:
        hint = "run `pip install matplotlib`, or install tlaunch with its extra `report`"
        raise UsageError("--html needs matplotlib, which is not installed", hint=hint)
    if html == STDOUT and as_json:
        raise UsageError("`--html -` and --json would both write to stdout: give --html a file name")


def _check_named_file(html: str, runs_dir: Path) -> None:
    """Raise UsageError if --html names a run, or a file that is not a page of `tlaunch report`."""
    if _names_run(html, runs_dir):
        hint = f"use `tlaunch report --html report.html {shell_word(html)}`"
        raise UsageError(f"--html needs a file name, but {escaped(html)} names a run", hint=hint)
    hint = "use another file name, or --force to replace the file"
    check_replaceable(html, PAGE_MARK, "a page of `tlaunch report`", hint=hint)


def _names_run(html: str, runs_dir: Path) -> bool:
    """Return True if `html` names a run, or begins the name of one. A file with a suffix or directory does not."""
    if os.sep in html or Path(html).suffix:
        return False
    with suppress(UnreadableError, UsageError):
        return means_latest(html) or bool(find_runs(runs_dir, html))
    return False


def _serve(runs: tuple[str, ...], runs_dir: Path, port: int | None, progress_regex: str | None) -> None:
    if len(runs) > 1:
        raise UsageError(f"--live follows one run, not {len(runs)}", hint="run `tlaunch report --live` for each run")
    # Only --live needs this module.
    from launcher.cli.commands.report.live_server import serve

    run_dir = chosen_live(runs_dir, runs[0] if runs else None)
    state = look(run_dir)
    if not state.lives:
        hint = f"use `tlaunch report {as_argument(run_dir)}`"
        raise UsageError(f"{shown_name(state)} cannot be followed: {describe_run(state)}", hint=hint)

    def announce(address: str) -> None:
        write_out(f"{address}\n")
        say(f"open it in a browser on this machine; it follows {shown_name(state)} until the run ends, or until Ctrl-C")

    serve(run_dir, progress_regex, port or 0, announce)


def _write_page(runs: list[RunFacts], html: str) -> None:
    # Only pages need matplotlib and Jinja2, which take a second to import.
    try:
        from launcher.cli.commands.report import drawing, page
    except (ImportError, ValueError) as error:  # incomplete installation; unknown MPLBACKEND
        raise UsageError(f"matplotlib cannot be loaded: {error}", hint="run `pip install -U matplotlib`") from error
    content = page.to_html(runs, drawing.to_svg)
    if html == STDOUT:
        # The page declares UTF-8, regardless of the terminal's encoding.
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        write_out(content)
        return
    put(html, content.encode(), hint="use `--html -` to write to stdout")
    with suppress(OSError):  # the file is written, even if stderr cannot be
        click.echo(f"wrote {escaped(os.fsdecode(html))}", err=True)
