"""`tlaunch report`."""

import json
import math
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from launcher.cli.commands.report import page as page_module
from launcher.cli.commands.report import rank_chart, screenshot
from launcher.cli.commands.report.command import to_lines
from launcher.cli.commands.report.figures import gather
from launcher.cli.text.columns import columns_of
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Judged,
    NotRestarting,
    RankEnded,
    RankStarted,
    Stopping,
)
from launcher.core.metrics import StepMetrics, append
from launcher.core.proc import ProcessId, identify
from launcher.core.verdict import Confidence, Failure, Role, Verdict

SPEC = spec_from_file_location("acted_run", Path(__file__).parents[1] / "programs" / "acted_run.py")
acted_run = module_from_spec(SPEC)
SPEC.loader.exec_module(acted_run)

AGENT = ProcessId(1, 1, "another", "boot")
HOSTILE = "<script>alert('x')</script>\x1b[2J&\"<img src=http://example.com/x>"
BROWSER = next(filter(None, map(shutil.which, screenshot.BROWSERS)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no Chromium on PATH: {', '.join(screenshot.BROWSERS)}")

WELL = [
    AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankStarted(1, 51),
    RankEnded(0, 50, 0), RankEnded(1, 51, 0), AgentEnded(Cause.FINISHED, 0),
]  # fmt: skip


def verdict(what, traceback=None):
    cause = Failure(1, Role.CAUSE, what, "it was first by 3 ms", 1, "a.py:3 in f", 1, traceback)
    other = Failure(0, Role.CONSEQUENCE, "ConnectionError: lost", "it lost its peer", 2, status=1)
    return Verdict(1, Confidence.LIKELY, "r", (cause, other))


def failed_twice(first, second, log_offset=0):
    """Two attempts of two ranks, of which rank 1 is to blame."""
    return [
        AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankStarted(1, 51),
        RankEnded(1, 51, 1), Judged(first), Stopping(Cause.FAILED, 1, restarts=True), RankEnded(0, 50, 1),
        AttemptStarted(1, 2), RankStarted(0, 60), RankStarted(1, 61, 0, log_offset), RankEnded(1, 61, 1), Judged(second),
        NotRestarting("it failed in the same way"), Stopping(Cause.FAILED, 1), RankEnded(0, 60, 1),
        AgentEnded(Cause.FAILED, 1),
    ]  # fmt: skip


def measure(run_dir, losses, *, attempt=0, first=1):
    """A line for each of `losses`, a validation after the last; the records."""
    records = []
    for step, loss in enumerate(losses, start=first):
        more = {
            "loss": loss,
            "learning_rate": step / 1e5,
            "tokens_per_s": 5000.0 + step % 7,
            "memory_bytes": step << 20,
        }
        records.append({"schema": 1, "time_ns": step * 10**8, "attempt": attempt, "step": step, "epoch": 1, **more})
    if records:
        last = {**records[-1], "validation_loss": 1.25, "perplexity": 3.5}
        records.append({name: last[name] for name in last if name not in {"loss", "tokens_per_s", "memory_bytes"}})
    with (run_dir.root / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return records


def made(launcher, name="a", events=WELL, losses=()):
    run_dir = acted_run.make(launcher.runs / name, events)
    measure(run_dir, losses)
    return run_dir


def page_of(launcher, *runs):
    done = launcher.run("report", *runs, "--html", "-")
    assert done.returncode == 0, done.stderr
    return done.stdout


def series_of(page):
    """What each line of the charts says of itself, by name."""
    found = {}
    for tag in re.findall(r"<g class=\"series[^>]*data-series[^>]*>", page):
        facts = dict(re.findall(r'data-(\w+)="([^"]*)"', tag))
        found[facts["series"], unescape(facts["run"])] = facts
    return found


# --- figures ---


def test_the_summary_tells_figures_and_courses(launcher):
    """One line each; what is not known is left out."""
    made(launcher, losses=[4.0, 3.0, None, 1.5, 2.0])
    done = launcher.run("report")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a: finished after 6.0 s: every rank ended well"
    told = {line[2:19].strip(): line[19:].split() for line in lines[1:]}
    assert told["final loss"] == ["2.0000", "█▅", "▁▂"]
    assert told["best loss"] == ["1.5000", "at", "step", "4"]
    assert told["last validation"][:5] == ["1.2500", "at", "step", "5,", "perplexity"]
    assert (told["steps"], told["median tokens/s"][0]) == (["5"], "5,003")
    assert told["peak memory"][:5] == ["5.0", "MiB", "of", "one", "rank"]


def test_without_block_elements_other_characters_draw_the_line(launcher):
    """Where stdout's encoding has none; nothing else is lost."""
    made(launcher, losses=[4.0, 3.0, 2.0])
    done = launcher.run("report", "a", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "#=_" in done.stdout


def test_json_has_the_figures_as_numbers(launcher):
    """With null for what is not known, for each run in the order asked for."""
    made(launcher, "a", losses=[4.0, 1.5, 2.0])
    made(launcher, "b", failed_twice(verdict("ValueError: one"), verdict("KeyError: two")))
    runs = json.loads(launcher.run("report", "b", "a", "--json").stdout)["runs"]
    assert [run["name"] for run in runs] == ["b", "a"]
    assert [runs[0][name] for name in ("state", "attempts", "steps", "final_loss", "culprit")] == [
        "failed",
        2,
        None,
        None,
        1,
    ]
    names = ("steps", "final_loss", "best_loss", "best_loss_step", "validation_loss", "perplexity", "peak_memory_bytes")
    assert [runs[1][name] for name in names] == [3, 2.0, 1.5, 2, 1.25, 3.5, 3 << 20]


def test_several_runs_stand_side_by_side(launcher):
    """A column each, within the width of the terminal."""
    made(launcher, "first", losses=[4.0, 2.0])
    made(launcher, "second", losses=[4.0, 1.0])
    lines = launcher.run("report", "first", "second").stdout.splitlines()
    assert lines[0].split() == ["first", "second"]
    [final] = [line for line in lines if line.startswith("final loss")]
    assert final.split() == ["final", "loss", "2.0000", "1.0000"]
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("names", [("first",), ("first", "second"), ("first", "second", "third", "fourth")])
def test_every_summary_fits_its_width(launcher, width, names):
    """20 columns at least. Runs that do not fit side by side stand below each other; no figure is lost."""
    facts = []
    for number, name in enumerate(names):
        if number != 1:
            events = failed_twice(verdict("ValueError: " + "no such thing " * 9), verdict("KeyError: x"))
        made(launcher, name, WELL if number == 1 else events, losses=[] if number == 2 else [4.0, 2.0 + number])
        facts.append(gather(acted_run.RunDir(launcher.runs / name)))
    lines = list(to_lines(facts, width))
    assert max(map(len, lines)) <= max(20, width)
    text = " ".join("".join(lines).split())
    assert all(name in text for name in names)
    assert "2.0000" in text
    assert "█" in text or width == 1 or width < 60
    is_beside = any("first" in line and "second" in line for line in lines)
    assert is_beside == ((len(names) == 2 and width >= 67) or (len(names) == 4 and width >= 119))


def test_a_loss_that_is_no_number_any_more_is_told(launcher):
    """With the last that was one."""
    made(launcher, losses=[4.0, 3.5, None, None])
    assert re.search(
        r"final loss +nan \(not finite\); last finite 3.5000 at step 2", launcher.run("report", "a").stdout
    )
    tiles = dict(re.findall(r'data-figure="([^"]+)"><dt>[^<]*</dt><dd>(.*?)</dd>', page_of(launcher, "a")))
    assert tiles["final loss"] == "nan (not finite)<small>last finite 3.5000 at step 2</small>"
    assert tiles["best loss"] == "3.5000<small>at step 2</small>"


def test_losses_that_were_never_finite_are_told(launcher):
    """Also a validation's: it is there, and is no number."""
    run_dir = made(launcher, losses=[None, None])
    with run_dir.metrics.open("a") as file:
        file.write(
            '{"schema": 1, "time_ns": 1, "attempt": 0, "step": 9, "validation_loss": null, "perplexity": null}\n'
        )
    told = launcher.run("report", "a").stdout
    assert re.search(r"final loss +nan \(not finite\)$", told, re.MULTILINE)
    assert re.search(
        r"last validation +nan \(not finite\) at step 9; last finite 1.2500 at step 2$", told, re.MULTILINE
    )
    page = page_of(launcher, "a")
    assert "<dd>nan (not finite)<small>at step 9; last finite 1.2500 at step 2</small>" in page
    assert ("loss", "a") not in series_of(page)
    [run] = json.loads(launcher.run("report", "a", "--json").stdout)["runs"]
    assert [run[name] for name in ("final_loss", "validation_loss", "validation_step")] == [None, None, 9]


def test_gaps_of_training_and_validation_are_not_added(launcher):
    """They are points of two lines."""
    run_dir = made(launcher, losses=[3.0, None, None, 2.0])
    with run_dir.metrics.open("a") as file:
        file.write('{"schema": 1, "time_ns": 1, "attempt": 0, "step": 9, "validation_loss": null}\n')
    page = page_of(launcher, "a")
    assert "2 points of training and 1 point of validation without a finite value" in page


def test_a_last_line_without_a_loss_hides_none(launcher):
    """The last one that was told counts, and where."""
    run_dir = made(launcher, losses=[3.0, 2.0])
    with run_dir.metrics.open("a") as file:
        file.write('{"schema": 1, "time_ns": 1, "attempt": 0, "step": 9, "tokens_per_s": 5.0}\n')
    assert re.search(r"final loss +2.0000 at step 2  ", launcher.run("report", "a").stdout)


def test_lines_that_are_not_understood_are_told(launcher):
    """With what is wrong with the first: in text, in JSON and in the page, of whichever run."""
    run_dir = made(launcher, losses=[3.0, 2.0])
    with run_dir.metrics.open("a") as file:
        file.write('{"step": 3, "loss": 1}\n' * 5)
    made(launcher, "b", losses=[3.0])
    words = "metrics.jsonl: 5 lines not understood; the first: line 4 has no schema"
    assert f"\n{words}\n" in launcher.run("report", "a").stdout
    assert f"\na: {words}\n" in launcher.run("report", "a", "b").stdout
    assert f'<p class="note">{words}</p>' in page_of(launcher, "a")
    assert f'<p class="note">a: {words}</p>' in page_of(launcher, "a", "b")
    runs = json.loads(launcher.run("report", "a", "b", "--json").stdout)["runs"]
    assert [(run["strange_lines"], run["first_strange_line"]) for run in runs] == [
        (5, "line 4 has no schema"),
        (0, None),
    ]


def test_the_loss_of_a_run_that_goes_on_is_not_final(launcher):
    """Neither alone nor beside others."""
    made(launcher, "b", losses=[3.0, 2.0])
    with acted_run.playing(launcher.runs / "a"):
        measure(acted_run.RunDir(launcher.runs / "a"), [3.0, 2.0])
        for runs in (["a"], ["a", "b"]):
            told = launcher.run("report", *runs).stdout + page_of(launcher, *runs)
            assert "last loss" in told
            assert "final loss" not in told


def test_colours_of_what_is_quoted_are_left_out(launcher):
    """As much as they are of what stands side by side."""
    made(
        launcher, events=failed_twice(verdict("KeyError: \x1b[31mred\x1b[0m"), verdict("KeyError: \x1b[31mred\x1b[0m"))
    )
    told = launcher.run("report", "a").stdout
    assert "KeyError: red" in told
    assert "\x1b" not in told


def test_wide_names_stand_side_by_side(launcher):
    """Two columns for each character; nothing is wider than asked for."""
    for name in ("\u6f22" * 30, "b"):
        made(launcher, name, losses=[4.0, 2.0])
    facts = [gather(acted_run.RunDir(launcher.runs / name)) for name in ("\u6f22" * 30, "b")]
    lines = list(to_lines(facts, 80))
    assert max(map(columns_of, lines)) <= 80
    places = {
        columns_of(line[: line.rindex("2.0000" if number else "b")])
        for number, line in enumerate([lines[0], *(line for line in lines if line.startswith("final loss"))])
    }
    assert len(places) == 1
    assert max(map(columns_of, to_lines(facts[:1], 40))) <= 40


# --- the page ---


def test_lines_of_the_page_are_those_of_the_file(launcher):
    """First, last, lowest, highest and number of values: every digit, of every series."""
    run_dir = made(launcher)
    losses = [None if step == 7 else 2 + 5 * math.exp(-step / 9) + math.sin(step) / 3 for step in range(40)]
    records = measure(run_dir, losses)
    found = series_of(page_of(launcher, "a"))
    for name in ("loss", "learning_rate", "tokens_per_s", "memory_bytes", "validation_loss"):
        values = [
            record[name]
            for record in records
            if record.get(name) is not None and ("loss" in record) == (name != "validation_loss")
        ]
        facts = found[name, "a"]
        told = [float(facts[each]) for each in ("first", "last", "min", "max")]
        assert told == [values[0], values[-1], min(values), max(values)], name
        assert int(facts["count"]) == len(values)
    assert found["loss", "a"]["gaps"] == "1"


def test_the_page_tells_the_figures(launcher):
    """The same as the terminal."""
    run_dir = made(launcher)
    records = [record for record in measure(run_dir, [4.0, 3.0, 2.5]) if "loss" in record]
    page = page_of(launcher, "a")
    figures = dict(re.findall(r'data-figure="([^"]+)"><dt>[^<]*</dt><dd>([^<]*)', page))
    assert figures["final loss"] == "2.5000"
    assert figures["steps"] == "3"
    speed = statistics.median(record["tokens_per_s"] for record in records)
    assert figures["median tokens/s"] == f"{speed:,.0f}"
    assert "finished after 6.0 s: every rank ended well" in page


def test_attempts_are_told_with_their_verdicts_and_last_words(launcher):
    """The traceback, or the end of what the culprit wrote in that attempt; why there was no other attempt."""
    log = "deep in the first\n\x1b[1mlast words\x1b[0m\n--- attempt 1 ---\nlater\n"
    events = failed_twice(verdict("exit code 7"), verdict("KeyError: two", "Traceback: of two"), log.index("later"))
    run_dir = made(launcher, events=events)
    run_dir.train_log(1).write_text(log)
    measure(run_dir, [4.0, 3.0])
    measure(run_dir, [3.9, 2.9, 2.0], attempt=1)
    page = page_of(launcher, "a")
    assert "rank 1 failed first: KeyError: two, at a.py:3 in f; 1 restart" in page
    first, second = re.findall(r"<tr data-attempt.*?</tr>", page, re.DOTALL)
    assert "<pre>deep in the first\nlast words</pre>" in first
    assert "<pre>Traceback: of two</pre>" in second
    assert "likely: it was first by 3 ms" in first
    assert "Not restarted again: it failed in the same way" in page
    assert first.count("Only followed: rank 0: ConnectionError: lost") == 1
    assert f"<code>{launcher.runs / 'a' / 'device1' / 'train.log'}</code>" in first
    assert "<code>tlaunch why a</code>" in page
    assert page.index("<h2>Attempts</h2>") < page.index("<h2>Training</h2>")
    assert page.count("<title>attempt 1 begins at step 1, after step 2</title>") == 4
    assert 'data-mark="restart"' in page


def test_a_culprit_that_wrote_nothing_is_quoted_with_nothing(launcher):
    """Neither with an empty box, nor with the line that begins the next attempt."""
    log = "--- attempt 1 ---\nlater\n"
    run_dir = made(launcher, events=failed_twice(verdict("exit code 7"), verdict("exit code 7"), log.index("later")))
    run_dir.train_log(1).write_text(log)
    page = page_of(launcher, "a")
    assert re.findall(r"<pre>([^{<]*)</pre>", page) == ["later"]


def failed_attempts(log_offsets):
    """Attempts of two ranks that begin at these offsets of rank 1's log; it ends each with a code of its own."""
    for number, log_offset in enumerate(log_offsets):
        yield from (AttemptStarted(number, 1), RankStarted(0, 50), RankStarted(1, 51, 0, log_offset))
        yield from (RankEnded(1, 51, number + 1), Judged(verdict(f"exit code {number + 1}")), RankEnded(0, 50, 1))


def written(log, attempts):
    """Plays a rank that writes, in each attempt, one text after the other, each time emptying its log in between."""
    for number, texts in enumerate(attempts):
        with log.open("ab") as file:
            file.write(f"--- attempt {number} ---\n".encode() if number else b"")
            yield file.tell()
            for again, text in enumerate(texts):
                if again:
                    os.truncate(log, 0)
                file.write(text.encode())
                file.flush()


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([["of 0\n"], ["of 1\n"], ["of 2\n"], ["of 3\n"]], ["of 0", "of 1", "of 2", "of 3"]),
        ([["of 0\n" * 50], ["before", "of 1\n"], ["of 2\n"], ["of 3\n"]], [None, "of 1", "of 2", "of 3"]),
        ([["of 0\n"], ["before", "of 1\n" * 50 + "end\n"], ["of 2\n"], ["of 3\n"]], [None, "end", "of 2", "of 3"]),
        ([["of 0\n"], ["of 1\n"], ["before" * 50, "of 2\n"], ["of 3\n"]], [None, None, "of 2", "of 3"]),
        ([["of 0\n"], ["of 1\n"], ["before", ""], ["of 3\n"]], [None, None, None, "of 3"]),
        ([["before", "of 0\n"], [""], ["of 2\n"]], ["of 0", None, "of 2"]),
        ([[""], ["of 1\n"], ["before", "of 2\n", "of 2 again\n" * 9]], [None, None, "of 2 again"]),
    ],
)
def test_a_log_that_was_emptied_gives_no_attempt_the_words_of_another(launcher, attempts, words):
    """Nor marks between attempts. What is gone is quoted with nothing; what came after the emptying belongs to its attempt."""
    log_offsets = list(written(made(launcher, "scratch").train_log(1), attempts))
    events = [AgentStarted(AGENT, None, 2), *failed_attempts(log_offsets), AgentEnded(Cause.FAILED, 1)]
    shutil.copy(launcher.runs / "scratch/device1/train.log", made(launcher, events=events).train_log(1))
    rows = re.findall(r"<tr data-attempt.*?</tr>", page_of(launcher, "a"), re.DOTALL)
    quoted = [re.search(r"<pre>([^<]*)</pre>", row) for row in rows]
    assert [found and found[1].split("\n")[-1] for found in quoted] == words
    assert not any("--- attempt" in row for row in rows)


def test_where_no_mark_could_be_written_no_attempt_has_the_words_of_another(launcher):
    """On a full disk."""
    text = "of 0, until the disk was full\n"
    events = [AgentStarted(AGENT, None, 2), *failed_attempts([0, len(text)]), AgentEnded(Cause.FAILED, 1)]
    run_dir = made(launcher, events=events)
    run_dir.train_log(1).write_text(text)
    assert "<pre>" not in page_of(launcher, "a").partition("<h2>Training</h2>")[0]
    run_dir.train_log(1).write_text(f"{text}of 1\n")
    assert re.findall(r"<pre>([^{<]*)</pre>", page_of(launcher, "a")) == ["of 1"]


def test_a_program_without_metrics_has_a_page_too(launcher):
    """Which says what to write, and shows ranks and verdicts all the same."""
    made(launcher, events=failed_twice(verdict("ValueError: one"), verdict("KeyError: two"))).metrics.unlink()
    page = page_of(launcher, "a")
    assert "There are no metrics: the program wrote no metrics.jsonl" in page
    assert "$TLAUNCH_RUN_DIR/metrics.jsonl" in page
    assert 'data-row="rank 1"' in page
    assert "KeyError: two" in page
    assert "no metrics: the program wrote no metrics.jsonl" in launcher.run("report", "a").stdout


def test_a_file_without_steps_is_told_from_none(launcher):
    """With what it does hold."""
    run_dir = made(launcher)
    run_dir.metrics.write_text('{"schema": 1, "time_ns": 1, "attempt": 0, "step": 1, "validation_loss": 2}\nrubbish\n')
    expected = "no steps in metrics.jsonl, only 1 validation"
    page = page_of(launcher, "a")
    assert f"There are {expected}." in page
    assert "metrics.jsonl: 1 line not understood; the first: line 2 is no JSON" in page
    made(launcher, "b").metrics.unlink()
    assert "<p>b: no metrics: " in page_of(launcher, "a", "b")
    told = " ".join(launcher.run("report", "a", "b").stdout.split())
    assert f"a: {expected}" in told
    assert "b: no metrics: " in told


def make_unreadable(path, how):
    path.unlink()
    match how:
        case "Permission denied":
            path.touch(mode=0)
        case "Is a directory":
            path.mkdir()
        case "it is no regular file":
            os.mkfifo(path)
        case "Too many levels of symbolic links":
            path.symlink_to(path.name)


@pytest.mark.parametrize(
    "why",
    [
        pytest.param("Permission denied", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")),
        "Is a directory",
        "it is no regular file",
        "Too many levels of symbolic links",
    ],
)
def test_metrics_that_cannot_be_read_are_told_from_none(launcher, why):
    """With the reason: in text, in JSON and in the page. Nobody is told how to write them."""
    make_unreadable(made(launcher).metrics, why)
    words = f"no metrics: metrics.jsonl cannot be read: {why}"
    told = launcher.run("report", "a").stdout
    assert told.endswith(f"\n{words}\n")
    page = page_of(launcher, "a")
    assert f"<p>There are {words}.</p>" in page
    assert "append one JSON object a line" not in page
    [run] = json.loads(launcher.run("report", "a", "--json").stdout)["runs"]
    assert run["metrics_unreadable"] == why
    made(launcher, "b").metrics.unlink()
    told = " ".join(launcher.run("report", "a", "b").stdout.split())
    assert f"a: {words} b: no metrics: the program wrote no metrics.jsonl" in told
    assert "append one JSON object a line" in page_of(launcher, "a", "b")


@pytest.mark.parametrize("from_line_of_both", [True, False])
def test_a_line_with_both_losses_is_a_step_and_a_validation(launcher, from_line_of_both):
    """And one that always names both loses no step."""
    run_dir = made(launcher)
    for step in range(1, 4):
        validation_loss = 3.5 if step == 3 and from_line_of_both else None
        record = {"schema": 1, "time_ns": step, "attempt": 0, "step": step, "loss": 4.0 / step, "tokens_per_s": 9.0}
        with run_dir.metrics.open("a") as file:
            file.write(json.dumps({**record, "validation_loss": validation_loss}) + "\n")
    [run] = json.loads(launcher.run("report", "a", "--json").stdout)["runs"]
    assert [run[name] for name in ("steps", "tokens_per_s", "step_records")] == [3, 9.0, 3]
    assert run["validation_loss"] == (3.5 if from_line_of_both else None)


def test_a_lost_run_lasted_until_its_last_sign_of_life(launcher):
    """Not only until its last event: in figures, in the page, and where an attempt is told."""
    gone = replace(identify(os.getpid()), started=identify(os.getpid()).started - 1)
    begun_ns = time.time_ns() - 60 * 10**9
    run_dir = acted_run.make(launcher.runs / "a")
    events = [AgentStarted(gone, None, 1), AttemptStarted(0, 1), RankStarted(0, 50)]
    events += [AttemptStarted(1, 1), RankStarted(0, 60)]
    acted_run.append(run_dir, *events, first_ns=begun_ns)
    last_ns = begun_ns + 40 * 10**9
    record = {"schema": 1, "time_ns": last_ns, "attempt": 1, "step": 1, "loss": 3.0}
    run_dir.metrics.write_text(json.dumps(record) + "\n" + json.dumps({**record, "time_ns": 2**63 - 1}) + "\n")
    [run] = json.loads(launcher.run("report", "a", "--json").stdout)["runs"]
    assert (run["state"], run["ended_ns"], run["duration_s"]) == ("lost", last_ns, pytest.approx(40))
    assert re.search(r"duration +40 s", launcher.run("report", "a").stdout)
    page = page_of(launcher, "a")
    assert "to 40 s after the start</title>" in page
    [last] = re.findall(r'<tr data-attempt="1">.*?</tr>', page, re.DOTALL)
    assert re.findall(r'<td class="narrow">([^<]*)', last) == ["1", "37 s", "lost"]


@pytest.mark.parametrize("steps", [1, 2, 100_000])
def test_any_number_of_steps_makes_a_page(launcher, steps):
    """One that opens at once, and says where not all is drawn."""
    made(launcher, losses=[2 + 5 * math.exp(-step / steps) for step in range(steps)])
    page = page_of(launcher, "a")
    assert series_of(page)["loss", "a"]["count"] == str(steps)
    assert len(page) < 400_000
    assert ("Of 100,000 points 1,000 are drawn" in page) == (steps > 1000)


@pytest.mark.parametrize("step", [2**53 + 2, 1_763_740_800_123_456_789, -(2**63)])
def test_a_step_of_any_size_makes_a_page(launcher, step):
    """One that was counted in nanoseconds: alone, and with one more."""
    run_dir = made(launcher)
    for count in (1, 2):
        append(run_dir.metrics, StepMetrics(count, 0, step + count - 1, loss=4.0 / count))
        page = page_of(launcher, "a")
        assert series_of(page)["loss", "a"]["count"] == str(count)
        places = [float(text) for text in re.findall(r' (?:x|cx)="([^"]+)"', page)]
        assert all(0 <= place <= rank_chart.WIDTH for place in places)


def test_losses_that_are_never_finite_make_a_page(launcher):
    """Of what else there is."""
    made(launcher, losses=[None, None, None])
    found = series_of(page_of(launcher, "a"))
    assert ("loss", "a") not in found
    assert ("tokens_per_s", "a") in found


def test_runs_are_laid_over_each_other_with_what_differs(launcher):
    """A line for each in every chart, in a look of its own, and only the settings that are not the same."""
    for number, name in enumerate(("first", "second")):
        run_dir = made(launcher, name, losses=[4.0, 3.0 - number])
        record = json.loads(run_dir.run_json.read_text())
        record["ranks"][0]["argv"] = [
            "python",
            "train.py",
            "--set",
            f"train.learning_rate=0.{number}",
            "--set",
            "a.b=1",
        ]
        run_dir.run_json.write_text(json.dumps(record))
    page = page_of(launcher, "first", "second")
    found = series_of(page)
    assert [found["loss", name]["last"] for name in ("first", "second")] == ["3.0", "2.0"]
    differs = page[page.index("What differs") : page.index("<h2>Training")]
    assert re.findall(r"<tr><th>([^<]+)</th>", differs) == ["train.learning_rate"]
    assert page.count('<ul class="legend">') == 4 + 2


def test_what_a_run_did_not_choose_is_its_default(launcher):
    """Of long values there is the beginning, and what no run has takes no row."""
    for name, more in (("first", ["--set", "train.seed=7", "x" * 10_000]), ("second", [])):
        run_dir = made(launcher, name)
        record = json.loads(run_dir.run_json.read_text())
        record["ranks"][0] |= {"argv": ["python", *more], "env": {"COLOUR": name} if more else {}}
        run_dir.run_json.write_text(json.dumps(record))
    page = page_of(launcher, "first", "second")
    differs = page[page.index("What differs") : page.index("<h2>Training")]
    assert "<tr><th>train.seed</th><td>7</td><td>default</td></tr>" in differs
    assert "<tr><th>$COLOUR</th><td>first</td><td>not set</td></tr>" in differs
    assert "x" * 1001 not in page
    assert page.count("KiB more") == 2
    assert "<th>first failure</th>" not in page
    assert "<th>steps</th>" not in page


def test_restarts_of_several_runs_say_whose_they_are(launcher):
    """Their lines stand in the same charts."""
    for name in ("first", "second"):
        run_dir = made(launcher, name, losses=[4.0, 3.0])
        measure(run_dir, [3.9, 2.9, 2.0], attempt=1)
    page = page_of(launcher, "first", "second")
    assert page.count("<title>first: attempt 1 begins at step 1, after step 2</title>") == 4
    assert page.count("<title>second: attempt 1 begins at step 1, after step 2</title>") == 4


def test_only_what_tlaunch_sets_is_no_setting(launcher):
    """Variables of the user's that are called much alike are told where they differ."""
    for number, name in enumerate(("first", "second")):
        run_dir = made(launcher, name)
        record = json.loads(run_dir.run_json.read_text())
        own = ("LOCAL_BATCH", "RANKING_LOSS", "GROUP_NORM", "MASTER_WEIGHTS", "DEVICE_IDS", "RANK_0_ONLY")
        tlaunchs = ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT", "DEVICE_ID", "RANK_ID", "TLAUNCH_RUN_DIR")
        record["ranks"][0]["env"] = dict.fromkeys(own + tlaunchs, f"{number + 1}")
        run_dir.run_json.write_text(json.dumps(record))
    page = page_of(launcher, "first", "second")
    differs = page[page.index("What differs") : page.index("<h2>Training")]
    assert re.findall(r"<tr><th>\$([^<]+)</th>", differs) == list(own)


@pytest.mark.parametrize("attempts", [1, 500])
def test_how_many_points_are_drawn_is_true(launcher, attempts):
    """Also of lines full of gaps, and of many attempts."""
    run_dir = made(launcher)
    for number in range(attempts):
        losses = [None if step % 2 else 3.0 + step % 97 for step in range(20_000 // attempts)]
        lines = [
            {"schema": 1, "time_ns": 1, "attempt": number, "step": step, "loss": loss}
            for step, loss in enumerate(losses)
        ]
        with run_dir.metrics.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    [series] = page_module._series(page_module.QUANTITIES[0], gather(run_dir), 0, 1)
    drawn = sum(map(len, series.drawn()))
    assert drawn <= max(1000, 8 * attempts)
    assert f"Of 20,000 points {drawn:,} are drawn" in page_of(launcher, "a")


def test_a_record_with_numbers_of_any_size_makes_a_page(launcher):
    """Whatever somebody has written into run.json."""
    run_dir = made(launcher)
    supervision = {"grace_s": 10**400, "max_restarts": 10**400, "hang_timeout_s": 2.5, "forward_signals": [10**400]}
    run_dir.run_json.write_text(json.dumps({**json.loads(run_dir.run_json.read_text()), "supervision": supervision}))
    page = page_of(launcher, "a")
    assert f"grace 1{'0' * 400} s, restarts at most 1{'0' * 400}, hang timeout 2.5 s, handed to ranks: 1000" in page


@pytest.mark.parametrize("name", ["<script>a", "b&amp;\x1b[2J\"'"])
def test_nothing_of_others_acts_in_the_page(launcher, name):
    """Neither a run's name, nor verdicts, tracebacks, log lines, commands, nor what a program counts as saved."""
    events = failed_twice(verdict(f"ValueError: {HOSTILE}"), verdict(HOSTILE, HOSTILE))
    run_dir = made(launcher, name, events, losses=[3.0, 2.0])
    run_dir.train_log(1).write_text(HOSTILE)
    record = json.loads(run_dir.run_json.read_text())
    record |= {"cwd": HOSTILE, "layout": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    record["ranks"][0]["argv"] = [HOSTILE, "\ud800"]
    run_dir.run_json.write_text(json.dumps(record))
    with (run_dir.root / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"schema": 1, "time_ns": 5, "attempt": 0, "step": 2, "saved": HOSTILE}) + "\n")
    for page in (page_of(launcher, name), page_of(launcher, name, name)):
        assert elements(page) <= {
            "html", "head", "meta", "title", "style", "body", "header", "section", "footer", "figure", "div", "dl", "dt",
            "dd", "h1", "h2", "h3", "p", "span", "small", "strong", "br", "code", "pre", "ul", "li", "table", "thead",
            "tbody", "tr", "th", "td", "svg", "g", "path", "rect", "circle", "text",
        }  # fmt: skip
        assert "\x1b" not in page
        assert "&lt;script&gt;alert(&#39;x&#39;)" in page
    assert "\x1b" not in launcher.run("report", name).stdout


def elements(page):
    found = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.add(tag)
    parser.feed(page)
    return found


def test_the_page_needs_no_network_and_no_script(launcher):
    """Nothing in it refers to anything outside, and its own policy would not load it."""
    made(launcher, losses=[3.0, 2.0])
    page = page_of(launcher, "a")
    assert not re.search(
        r"<(script|link|img|iframe|object|embed|image|use)\b|@import|url\(|\b(src|href)\s*=|\bon\w+=", page
    )
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_a_run_that_goes_on_has_a_report(launcher):
    """Up to now."""
    with acted_run.playing(launcher.runs / "a"):
        measure(acted_run.RunDir(launcher.runs / "a"), [3.0, 2.0])
        page = page_of(launcher, "a")
    assert "running for" in page
    assert "still runs" in page


# --- files ---


def test_files_are_written_whole_or_not_at_all(launcher):
    """What is not writable is told, with exit code 2, and nothing is left beside it."""
    made(launcher, losses=[3.0])
    done = launcher.run("report", "a", "--html", "page.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote page.html\n")
    assert (launcher.directory / "page.html").read_text().endswith("</html>\n")
    for place, why in (
        ("runs", "is no regular"),
        ("missing/a", "cannot be written"),
        ("page.html/x", "cannot be written"),
    ):
        done = launcher.run("report", "a", "--html", place)
        assert done.returncode == 2, done.stderr
        assert f"{place} {why}" in done.stderr
    assert {path.name for path in launcher.directory.iterdir()} == {"runs", "page.html"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--html", ""], "--html needs a file's name"),
        (["--png", ""], "--png needs a file's name"),
        (["--html", "x/"], "--html needs a file's name, and x/ is none"),
        (["--html", "x", "--png", "./x"], "both would be the same file"),
    ],
)
def test_a_name_that_is_none_is_refused(launcher, options, why):
    """Before anything is written."""
    made(launcher, losses=[3.0])
    done = launcher.run("report", "a", *options)
    assert (done.returncode, why in done.stderr) == (2, True)
    assert {path.name for path in launcher.directory.iterdir()} == {"runs"}


def test_a_page_that_is_written_is_a_success(launcher):
    """Also where nobody can hear of it."""
    made(launcher, losses=[3.0])
    with Path("/dev/full").open("w") as full:
        assert launcher.start("report", "a", "--html", "page.html", stderr=full).wait(60) == 0
    assert (launcher.directory / "page.html").is_file()


def test_what_is_no_file_is_never_replaced(launcher):
    """Not a pipe, and no device either: a link to a file stays a link."""
    made(launcher, losses=[3.0])
    os.mkfifo(launcher.directory / "pipe")
    assert launcher.run("report", "a", "--html", "pipe").returncode == 2
    assert (launcher.directory / "pipe").is_fifo()
    (launcher.directory / "link").symlink_to("page.html")
    assert launcher.run("report", "a", "--html", "link").returncode == 0
    assert (launcher.directory / "link").is_symlink()
    assert (launcher.directory / "page.html").is_file()


def test_a_run_that_is_not_there_is_named(launcher):
    """As by every command."""
    done = launcher.run("report", "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_a_picture_needs_a_file_and_a_browser(launcher, tmp_path):
    """What to install is said before anything is read."""
    (tmp_path / "bin").mkdir()
    done = launcher.run("report", "nowhere", "--png", "a.png", env={"PATH": str(tmp_path / "bin")})
    assert done.returncode == 2
    assert "chromium, chromium-browser, google-chrome, chrome" in done.stderr
    assert "apt-get install chromium" in done.stderr
    assert launcher.run("report", "a", "--png", "-").returncode == 2


# --- pictures ---


def browser_that(directory, script, monkeypatch):
    path = directory / "chromium"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def test_a_browser_that_fails_is_quoted(tmp_path, monkeypatch):
    """With its code and its last word."""
    browser_that(tmp_path, "echo no display >&2; exit 3", monkeypatch)
    with pytest.raises(TlaunchError, match="failed with 3: no display"):
        screenshot.screenshot("<html></html>", "policy")


def test_a_browser_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    """After a time; its profile is removed as well."""
    browser_that(tmp_path, "sleep 1000 & sleep 1000", monkeypatch)
    monkeypatch.setattr(screenshot, "PATIENCE_S", 0.3)
    with pytest.raises(TlaunchError, match="took more than"):
        screenshot.screenshot("<html></html>", "policy")


def test_a_browser_without_a_picture_has_failed(tmp_path, monkeypatch):
    """Though it says that it has not."""
    browser_that(tmp_path, "echo '<html data-height=\"1000\">'", monkeypatch)
    with pytest.raises(TlaunchError, match="made no picture") as caught:
        screenshot.screenshot("<html></html>", "policy")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_end_leaves_nothing_of_the_browser(launcher, tmp_path, monkeypatch, wait_until, number):
    """No process of its group, and no file, whatever it keeps in the directory for such ones."""
    made(launcher, losses=[3.0])
    script = f'touch "$TMPDIR/.org.chromium.x"; sleep 1000 & echo $! > {tmp_path}/child; mv {tmp_path}/child {tmp_path}/pid; wait'
    browser_that(tmp_path, script, monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        places = {"PATH": os.environ["PATH"], "TMPDIR": temporary}
        process = launcher.start("report", "a", "--png", "a.png", env=places)
        pid = wait_until(lambda: (tmp_path / "pid").is_file() and int((tmp_path / "pid").read_text()), "its child")
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert list(Path(temporary).iterdir()) == []
    wait_until(lambda: is_gone(pid), "the end of its child")


def is_gone(pid):
    """Also one that its parent has not heard of yet."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@needs_browser
def test_the_picture_is_of_the_whole_page(launcher):
    """1200 pixels wide, as high as it must be, and not of one colour; nothing is left of the browser."""
    made(launcher, events=failed_twice(verdict("ValueError: one"), verdict("KeyError: two")), losses=[3.0, 2.0])
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        done = launcher.run("report", "a", "--png", "a.png", env={"TMPDIR": temporary})
        assert list(Path(temporary).iterdir()) == []
    assert done.returncode == 0, done.stderr
    width, height, rows = decoded((launcher.directory / "a.png").read_bytes())
    assert width == 1200
    assert 1000 < height < 5000
    assert len(set(rows)) > 100
    assert len(set(rows[-200:])) > 5, "the end of the page is missing"


@needs_browser
def test_a_page_that_is_too_long_is_never_cut(monkeypatch):
    """It is refused."""
    monkeypatch.setattr(screenshot, "TALLEST", 2000)
    with pytest.raises(UsageError, match="3,000 pixels high"):
        screenshot.screenshot("<html><body style='margin: 0; height: 3000px'></body></html>", "policy")


@needs_browser
def test_a_browser_sees_what_is_meant(launcher):
    """Charts and hostile text in place, and no script was run."""
    made(launcher, events=failed_twice(verdict(HOSTILE), verdict(HOSTILE)), losses=[3.0, 2.0])
    launcher.run("report", "a", "--html", "a.html")
    page = (launcher.directory / "a.html").read_text()
    # Where a test's own directory is, Chromium's socket may have too long a name.
    with tempfile.TemporaryDirectory(dir=screenshot._place(), ignore_cleanup_errors=True) as directory:
        shown = screenshot._run(BROWSER, Path(directory), page, "--dump-dom")
    assert series_of(shown).keys() == series_of(page).keys()
    assert "<script" not in shown
    assert "<img" not in shown
    assert "alert('x')" in unescape(shown)


def decoded(picture):
    """Width, height and the rows of a PNG as they are stored."""
    chunks, offset = {}, 8
    while offset < len(picture):
        length, kind = struct.unpack(">I4s", picture[offset : offset + 8])
        chunks[kind] = chunks.get(kind, b"") + picture[offset + 8 : offset + 8 + length]
        offset += length + 12
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    data = zlib.decompress(chunks[b"IDAT"])
    size = len(data) // height
    return width, height, [data[row * size : (row + 1) * size] for row in range(height)]


def test_the_template_comes_with_an_installed_copy():
    """Where `data_dir` looks for it."""
    code = "from launcher.core.resources import data_dir; print((data_dir('templates') / 'report.html.j2').is_file())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
