"""`tlaunch report`."""

import json
import os
import re
import shutil
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from launcher.cli.commands.report.charts import charts_of
from launcher.cli.commands.report.differences import differences
from launcher.cli.commands.report.drawing import to_svg
from launcher.cli.commands.report.facts import gather
from launcher.cli.commands.report.page import about, to_html
from launcher.cli.commands.report.report_text import figures, to_lines
from launcher.cli.text.columns import columns_of
from launcher.cli.text.output_file import put
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, Judged, RankEnded, RankStarted
from tests.programs import acted_run

from .failed_run import AGENT, failed_twice, verdict

pytestmark = pytest.mark.usefixtures("report_fonts")
HOSTILE = "<script>alert('x')</script>\x1b[2J&\"<img src=http://example.com/x>"
NO_METRICS = "no metrics: the program wrote no metrics.jsonl into its run directory"

WELL = [
    AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankStarted(1, 51),
    RankEnded(0, 50, 0), RankEnded(1, 51, 0), AgentEnded(Cause.FINISHED, 0),
]  # fmt: skip


class Runs:
    """Runs made by hand in one directory, and their reports."""

    def __init__(self, directory):
        self.directory = directory

    def make(self, name="a", events=WELL, losses=()):
        run_dir = acted_run.make(self.directory / name, events)
        self.measure(name, losses)
        return run_dir

    def measure(self, name, losses, *, attempt=0):
        """Append a line for each of `losses`, and a validation after the last."""
        records = []
        for step, loss in enumerate(losses, start=1):
            more = {"learning_rate": step / 1e5, "tokens_per_s": 5000.0 + step % 7, "memory_bytes": step << 20}
            records.append({"time_ns": step * 10**8, "attempt": attempt, "step": step, "loss": loss, **more})
        if records:
            place = {name: records[-1][name] for name in ("time_ns", "attempt", "step")}
            records.append({**place, "validation_loss": 1.25, "perplexity": 3.5})
        self.append(name, *records)

    def append(self, name, *records):
        with (self.directory / name / "metrics.jsonl").open("a") as file:
            file.writelines(
                each if isinstance(each, str) else json.dumps({"schema": 1, "time_ns": 1, "attempt": 0, **each}) + "\n"
                for each in records
            )

    def record(self, name, *, ranks=None, **changes):
        path = self.directory / name / "run.json"
        record = json.loads(path.read_text()) | changes
        record["ranks"][0] |= ranks or {}
        path.write_text(json.dumps(record))

    def facts(self, *names):
        return [gather(acted_run.RunDir(self.directory / name)) for name in names]

    def lines(self, *names, width=120, **options):
        return list(to_lines(self.facts(*names), width, **options))

    def page(self, *names):
        return to_html(self.facts(*names), lambda chart: "")


@pytest.fixture
def runs(launcher):
    return Runs(launcher.runs)


# --- the terminal and JSON ---


def test_the_summary_tells_figures_and_courses(runs, snapshot):
    runs.make("finite", losses=[4.0, 3.0, None, 1.5, 2.0])
    runs.make("infinite", losses=[4.0, 3.5, None, None])
    runs.append("infinite", {"step": 9, "validation_loss": None, "perplexity": None})
    shown = {name: runs.lines(name) for name in ("finite", "infinite")} | {"plain": runs.lines("finite", plain=True)}
    assert shown == snapshot
    assert "".join(shown["plain"]).isascii()
    page = runs.page("infinite")
    assert '<dd data-figure="final loss">nan (not finite); last finite 3.5000 at step 2</dd>' in page
    assert "2 points of training and 1 point of validation without a finite value" in page


def test_what_the_steps_went_into_is_told(launcher, runs, snapshot):
    runs.make("a")
    parts = {"step_s": 2.0, "compute_s": 1.0, "communication_s": 0.4, "bubble_s": 0.5, "data_s": 0.1}
    more = {
        "gradient_norm": 1.25,
        "clipped_share": 0.25,
        "padding_share": 0.125,
        "utilisation": 0.5,
        "memory_bytes": 1 << 20,
        "peak_memory_bytes": 3 << 20,
    }
    runs.append("a", *({"step": step, "loss": 1.0, **parts, **more} for step in (1, 2)))
    runs.append("a", {"step": 2, "stage_busy": [0.9, 0.62], "stage_predicted": [0.95, 0.6]})
    assert runs.lines("a") == snapshot
    found = json.loads(launcher.call("report", "a", "--json").stdout)["runs"][0]
    names = ("step_s", "step_shares", "padding_share", "utilisation", "stage_busy", "peak_memory_bytes", "gradient_norm",
        "clipped_share")  # fmt: skip
    shares = {"compute": 0.5, "communication": 0.2, "bubble": 0.25, "data": 0.05}
    assert [found[name] for name in names] == [2.0, shares, 0.125, 0.5, [0.9, 0.62], 3 << 20, 1.25, 0.25]
    runs.append("a", *({"step": step, "step_s": 1e308, "compute_s": 1e308} for step in range(3, 9)))
    assert gather(acted_run.RunDir(launcher.runs / "a")).totals.step_s is None
    assert "compute" not in "".join(runs.lines("a"))


def test_json_has_the_figures_as_numbers(launcher, runs):
    runs.make("a", losses=[4.0, 1.5, 2.0])
    runs.make("b", failed_twice(verdict("ValueError: one"), verdict("KeyError: two")))
    runs.append("b", '{"step": 3, "loss": 1}\n')
    found = json.loads(launcher.call("report", "b", "a", "--json").stdout)["runs"]
    names = ("name", "state", "attempts", "steps", "final_loss", "culprit", "strange_lines", "first_strange_line")
    assert [found[0][name] for name in names] == ["b", "failed", 2, None, None, 1, 1, "line 1 has no schema"]
    names = ("steps", "final_loss", "best_loss", "best_loss_step", "validation_loss", "perplexity", "peak_memory_bytes")
    assert [found[1][name] for name in names] == [3, 2.0, 1.5, 2, 1.25, 3.5, 3 << 20]


def test_validations_and_an_early_end_are_told(launcher, runs):
    run_dir = runs.make("a", losses=[4.0, 1.5, 2.0])
    runs.append("a", {"step": 1, "validation_loss": 1.0, "bleu": 30.5}, {"step": 2, "validation_loss": 2.0, "bleu": 3})
    run_dir.heartbeat(0).write_text(json.dumps({"step": 3, "last_step": 9}) + "\n")
    [found] = json.loads(launcher.call("report", "a", "--json").stdout)["runs"]
    names = ("best_validation_loss", "best_validation_step", "bleu", "bleu_step", "best_bleu", "best_bleu_step")
    assert [found[name] for name in names] == [1.0, 1, 3.0, 2, 30.5, 1]
    assert found["ended_early_of"] == 9
    text = figures(runs.facts("a"))
    assert text["steps"] == ["3 of 9, ended early"]
    assert text["best validation"] == ["1.0000 at step 1"]
    assert (text["last BLEU"], text["best BLEU"]) == (["3.00 at step 2"], ["30.50 at step 1"])
    assert [chart.title for chart in charts_of(runs.facts("a"))][:2] == ["loss", "BLEU"]


def test_one_course_over_attempts_and_runs(launcher, runs):
    """What was computed again counts once. Curves are of all of it, the figure of the speed is that of this run alone."""
    runs.make("a", losses=[9.0, 8.0, 7.0, 0.5])
    runs.make("b")
    continued = {"run": "a", "checkpoint": str(runs.directory / "a" / "checkpoints" / "step-3"), "step": 3}
    runs.record("b", continues=continued)
    steps = [(0, 4, 6.0), (0, 5, 0.25), (1, 5, 5.0), (1, 6, 4.0)]
    runs.append("b", *({"attempt": n, "step": at, "loss": loss, "tokens_per_s": 10.0} for n, at, loss in steps))
    [facts] = runs.facts("b")
    assert [(each.step, each.loss) for each in facts.course.steps] == list(enumerate([9.0, 8.0, 7.0, 6.0, 5.0, 4.0], 1))
    assert [each.tokens_per_s for each in facts.course.steps] == [5001.0, 5002.0, 5003.0, 10.0, 10.0, 10.0]
    assert (facts.totals.best_loss, facts.totals.steps, facts.totals.tokens_per_s) == (4.0, 6, 10.0)
    [line] = [line for line in runs.lines("b") if "continues" in line]
    assert line.split() == ["continues", "a", "from", "step", "3"]
    found = json.loads(launcher.call("report", "b", "--json").stdout)["runs"][0]
    assert (found["continues"], found["step_records"]) == (continued, 4)


@pytest.mark.parametrize("width", [1, 20, 60, 80, 120, 200])
@pytest.mark.parametrize("names", [("first",), ("first", "second"), ("first", "漢" * 30, "third", "fourth")])
def test_every_summary_fits_its_width(runs, width, names):
    for number, name in enumerate(names):
        events = failed_twice(verdict("ValueError: " + "no \x1b[31msuch\x1b[0m thing " * 9), verdict("KeyError: x"))
        runs.make(name, WELL if number == 1 else events, losses=[] if number == 2 else [4.0, 2.0 + number])
    lines = runs.lines(*names, width=width)
    assert max(map(columns_of, lines)) <= max(20, width)
    text = " ".join("".join(lines).split())
    assert "2.0000" in text
    assert "\x1b" not in text
    is_beside = any("failed" in line and "finished" in line for line in lines)
    assert is_beside == ((len(names) == 2 and width >= 70) or (len(names) == 4 and width >= 120))


def test_no_figure_is_cut_beside_another(runs):
    for name in ("20260101-000000-transformer", "20260101-000001-transformer"):
        runs.make(name, losses=[4.0, 3.0])
    lines = runs.lines("20260101-000000-transformer", "20260101-000001-transformer", width=80)
    assert "…" not in "".join(lines)
    assert "".join(lines).count("perplexity") == 2


def test_a_last_line_without_a_loss_hides_none(runs):
    runs.make(losses=[3.0, 2.0])
    last = {"step": 9, "loss": None, "tokens_per_s": 5.0, "validation_loss": 3.5}
    runs.append("a", {"step": 8, "tokens_per_s": 5.0}, last)
    [facts] = runs.facts("a")
    assert (facts.totals.steps, facts.totals.validation_loss, len(facts.metrics.steps)) == (9, 3.5, 4)


def test_what_is_wrong_with_metrics_is_told(runs):
    runs.make("strange", losses=[3.0, 2.0])
    runs.append("strange", *['{"step": 3, "loss": 1}\n'] * 5)
    runs.make("no-steps")
    runs.append("no-steps", {"step": 1, "validation_loss": 2})
    runs.make("none").metrics.unlink()
    strange = "metrics.jsonl: 5 lines left out, not valid metrics; the first: line 4 has no schema"
    no_steps, how = "no steps in metrics.jsonl, only 1 validation", "from tlaunch import metric"
    for shown in ("\n".join(runs.lines("strange")), runs.page("strange")):
        assert (strange in shown, how in shown) == (True, False)
    names = ("strange", "no-steps", "none")
    for shown in ("\n".join(runs.lines(*names, width=999)), runs.page(*names)):
        for text in (f"strange: {strange}", f"no-steps: {no_steps}", f"none: {NO_METRICS}", how):
            assert text in shown


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_metrics_that_cannot_be_read_are_told_from_none(runs, make, snapshot):
    path = runs.make().metrics
    path.unlink()
    make(path)
    assert runs.lines("a")[-1] == snapshot
    assert "append one JSON object a line" not in runs.page("a")


def test_a_run_that_goes_on_is_reported_up_to_now(launcher, runs):
    runs.make("b", losses=[3.0, 2.0])
    with acted_run.playing(launcher.runs / "a"):
        runs.measure("a", [3.0, 2.0])
        for names in (["a"], ["a", "b"]):
            shown = "\n".join(runs.lines(*names)) + runs.page(*names)
            assert "last loss" in shown
            assert "final loss" not in shown
        assert "running for" in runs.page("a")


def test_a_lost_run_lasted_until_its_last_sign_of_life(runs):
    begun_ns = time.time_ns() - 60 * 10**9
    run_dir = runs.make(events=())
    events = [AgentStarted(acted_run.someone_gone(), None, 1), AttemptStarted(0, 1), RankStarted(0, 50)]
    acted_run.append(run_dir, *events, AttemptStarted(1, 1), RankStarted(0, 60), first_ns=begun_ns)
    last_ns = begun_ns + 40 * 10**9
    record = {"time_ns": last_ns, "attempt": 1, "step": 1, "loss": 3.0}
    runs.append("a", record, {**record, "time_ns": 2**63 - 1})
    [facts] = runs.facts("a")
    assert (facts.state.state.value, facts.ended_ns, facts.totals.duration_s) == ("lost", last_ns, pytest.approx(40))
    [last] = re.findall(r'<tr data-attempt="1">.*?</tr>', runs.page("a"), re.DOTALL)
    assert re.findall(r'<td class="narrow"[^>]*>([^<]*)', last) == ["1", "37 s", "lost"]


# --- attempts ---


def test_attempts_are_told_with_their_verdicts_and_last_lines(runs):
    log = "deep in the first\n\x1b[1mlast words\x1b[0m\n--- attempt 1 ---\nlater\n"
    events = failed_twice(verdict("exit code 7"), verdict("KeyError: two", "Traceback: of two"), log.index("later"))
    run_dir = runs.make(events=events, losses=[4.0, 3.0])
    run_dir.train_log(1).write_text(log)
    page = runs.page("a")
    assert "rank 1 failed first: KeyError: two, at a.py:3 in f; 1 restart" in page
    first, second = re.findall(r"<tr data-attempt.*?</tr>", page, re.DOTALL)
    assert "<pre>deep in the first\nlast words</pre>" in first
    assert "<pre>Traceback: of two</pre>" in second
    assert f"<code>{run_dir.train_log(1)}</code>" in first
    assert "<code>tlaunch why a</code>" in page
    assert page.index("<h2>Attempts</h2>") < page.index("<h2>Training</h2>")
    why = ("likely: it was first by 3 ms", "Consequences: rank 0: ConnectionError: lost")
    for text in (*why, "Not restarted: it failed in the same way"):
        assert text in page


def failed_attempts(log_offsets):
    """Attempts of two ranks that begin at these offsets of rank 1's log; it ends each with a code of its own."""
    for number, log_offset in enumerate(log_offsets):
        yield from (AttemptStarted(number, 1), RankStarted(0, 50), RankStarted(1, 51, 0, log_offset))
        yield from (RankEnded(1, 51, number + 1), Judged(verdict(f"exit code {number + 1}")), RankEnded(0, 50, 1))


def written(log, attempts):
    """Play a rank that writes, in each attempt, one text after the other, each time emptying its log in between."""
    for number, texts in enumerate(attempts):
        with log.open("ab") as file:
            file.write(f"--- attempt {number} ---\n".encode() if number else b"")
            yield file.tell()
            for again, text in enumerate(texts):
                if again:
                    os.truncate(log, 0)
                file.write(text.encode())
                file.flush()


@pytest.mark.parametrize(("attempts", "quoted"), [
    ([["of 0\n"], ["of 1\n"], ["of 2\n"], ["of 3\n"]], ["of 0", "of 1", "of 2", "of 3"]),
    ([["of 0\n" * 50], ["before", "of 1\n"], ["of 2\n"], ["of 3\n"]], [None, "of 1", "of 2", "of 3"]),
    ([["of 0\n"], ["before", "of 1\n" * 50 + "end\n"], ["of 2\n"], ["of 3\n"]], [None, "end", "of 2", "of 3"]),
    ([["of 0\n"], ["of 1\n"], ["before" * 50, "of 2\n"], ["of 3\n"]], [None, None, "of 2", "of 3"]),
    ([["of 0\n"], ["of 1\n"], ["before", ""], ["of 3\n"]], [None, None, None, "of 3"]),
    ([["before", "of 0\n"], [""], ["of 2\n"]], ["of 0", None, "of 2"]),
    ([[""], ["of 1\n"], ["before", "of 2\n", "of 2 again\n" * 9]], [None, None, "of 2 again"]),
])  # fmt: skip
def test_a_log_that_was_emptied_gives_no_attempt_the_lines_of_another(runs, attempts, quoted):
    """Nor marks between attempts. What is gone is quoted with nothing; what came after belongs to its attempt."""
    log_offsets = list(written(runs.make("scratch").train_log(1), attempts))
    events = [AgentStarted(AGENT, None, 2), *failed_attempts(log_offsets), AgentEnded(Cause.FAILED, 1)]
    shutil.copy(runs.directory / "scratch/device1/train.log", runs.make(events=events).train_log(1))
    rows = re.findall(r"<tr data-attempt.*?</tr>", runs.page("a"), re.DOTALL)
    found = [re.search(r"<pre>([^<]*)</pre>", row) for row in rows]
    assert [each and each[1].split("\n")[-1] for each in found] == quoted
    assert not any("--- attempt" in row for row in rows)


def test_where_no_mark_could_be_written_no_attempt_has_the_lines_of_another(runs):
    text = "of 0, until the disk was full\n"
    events = [AgentStarted(AGENT, None, 2), *failed_attempts([0, len(text)]), AgentEnded(Cause.FAILED, 1)]
    run_dir = runs.make(events=events, losses=[3.0])
    run_dir.train_log(1).write_text(text)
    assert "<pre>" not in runs.page("a")
    run_dir.train_log(1).write_text(f"{text}of 1\n")
    assert re.findall(r"<pre>([^{<]*)</pre>", runs.page("a")) == ["of 1"]
    run_dir.train_log(1).unlink()
    os.mkfifo(run_dir.train_log(1))  # which nobody waits for
    assert "<pre>" not in runs.page("a")


# --- several runs ---


def test_runs_are_compared_with_what_differs(runs):
    own = ("LOCAL_BATCH", "RANKING_LOSS", "DEVICE_IDS", "RANK_0_ONLY")
    tlaunchs = ("RANK", "LOCAL_RANK", "MASTER_PORT", "DEVICE_ID", "RANK_ID", "TLAUNCH_RUN_DIR")
    for number, name in enumerate(("first", "second")):
        runs.make(name, losses=[4.0, 3.0 - number])
        more = ["--set", "train.seed=7", "x" * 10_000] if number else []
        argv = ["python", "train.py", "--set", f"train.learning_rate=0.{number}", "--set", "a.b=1", *more]
        env = dict.fromkeys(own + tlaunchs, f"{number + 1}") | ({"COLOUR": "red"} if number else {})
        runs.record(name, ranks={"argv": argv, "env": env})
    page = runs.page("first", "second")
    differs = page[page.index("<h2>Differences") : page.index("<h2>Training")]
    found = re.findall(r"<tr><th>([^<]+)</th><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)", differs)
    names = ["command", "train.learning_rate", "train.seed", "$COLOUR", *(f"${name}" for name in own)]
    assert sorted(name for name, *_ in found) == sorted(names)
    assert ("train.seed", "not given", "7") in found
    assert ("$COLOUR", "not recorded", "red") in found
    assert "x" * 1001 not in page
    assert ("train.learning_rate", "0.0", "0.1") in found


def test_the_configuration_has_the_line_to_repeat_and_no_internal_words(runs):
    runs.make("a", losses=[4.0])
    rules = {
        "grace_s": 15.0,
        "max_restarts": 2,
        "forward_signals": [10, 63],
        "preload": ["_package", "launcher.trainer", "torch"],
    }
    runs.record("a", options={"devices": 4, "command": ["python", "a b.py"]}, supervision=rules, cwd="/w")
    shown = dict(about(*runs.facts("a")))
    assert shown["command"] == "tlaunch run --devices=4 -- python 'a b.py'"
    assert shown["rules"] == (
        "grace period: 15 s; restarts: at most 2; forwarded signals: SIGUSR1, signal 63; preloaded modules: torch"
    )


def test_a_value_with_the_name_of_its_run_is_no_difference(runs):
    for name in ("first", "second"):
        runs.make(name, losses=[4.0])
        runs.record(name, ranks={"argv": ["a"], "env": {"TORCHELASTIC_RUN_ID": name, "OUT": f"/tmp/{name}/out"}})
    assert dict(differences(runs.facts("first", "second"))) == {}


def test_resolved_settings_and_real_environments_are_compared(runs):
    for number, name in enumerate(("first", "second")):
        run_dir = runs.make(name, losses=[4.0])
        argv = ["python", "-m", "launcher.trainer", *["--set", "train.steps=3"] * number]
        runs.record(name, ranks={"argv": argv, "env": {"OMP_NUM_THREADS": "1"} if number else {}})
        run_dir.settings.write_text(f"[train]\nsteps = 3\nlearning_rate = 0.00{number + 1}\nseed = 3\n")
        environment = {"OMP_NUM_THREADS": 1, "SEED": number, "PWD": f"/{number}", "TORCHELASTIC_RUN_ID": name}
        run_dir.env_log(0).write_text("".join(f"{each}={value}\n" for each, value in environment.items()))
    found = dict(differences(runs.facts("first", "second")))
    assert found == {"train.learning_rate": ["0.001", "0.002"], "$SEED": ["0", "1"]}


# --- the page ---


def test_nothing_of_others_acts_in_the_page(runs):
    names = ("<script>a", "b&amp;\x1b[2J\"'")
    for name in names:
        events = failed_twice(verdict(f"ValueError: {HOSTILE}"), verdict(HOSTILE, HOSTILE))
        runs.make(name, events, [3.0, 2.0]).train_log(1).write_text(HOSTILE)
        hostile = {"cwd": HOSTILE, "layout": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
        runs.record(name, ranks={"argv": [HOSTILE, "\ud800"]}, supervision={"grace_s": 10**400}, **hostile)
        runs.append(name, {"time_ns": 5, "step": 2, "saved": HOSTILE})
    for page in (runs.page(names[0]), to_html(runs.facts(*names), to_svg)):
        elements = set()
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attributes, elements=elements: elements.add(tag)
        parser.feed(page)
        assert elements <= {
            "html", "head", "meta", "title", "style", "body", "header", "section", "footer", "figure", "div", "dl", "dt",
            "dd", "h1", "h2", "h3", "p", "span", "strong", "br", "code", "pre", "table", "thead", "tbody", "tr", "th", "td",
            "svg", "g", "path", "rect", "circle", "text", "defs", "use", "clippath", "pattern",
        }  # fmt: skip
        assert "\x1b" not in page
        assert "&lt;script&gt;alert(&#39;x&#39;)" in page
        page.encode()


def test_the_page_needs_no_network_and_no_script(runs):
    runs.make(events=failed_twice(verdict("ValueError: one"), verdict("KeyError: two")), losses=[3.0, 2.0])
    page = to_html(runs.facts("a"), to_svg)
    assert page.count("<svg") == 6
    assert not re.search(r"<(script|link|img|iframe|object|embed|image)\b|@import|\bsrc\s*=|\bon\w+=", page)
    assert "http" not in re.sub(r' xmlns(:\w+)?="[^"]+"', "", page).replace("http-equiv", "")
    assert "default-src 'none'" in page
    targets = {name for pair in re.findall(r'href="([^"]*)"|url\(([^)]*)\)', page) for name in pair if name}
    assert targets <= {f"#{name}" for name in re.findall(r' id="([^"]+)"', page)}


# --- files ---


def test_a_page_is_written_whole_or_not_at_all(launcher, runs):
    runs.make(losses=[3.0])
    (launcher.directory / "link").symlink_to("page.html")
    with Path("/dev/full").open("w") as full:
        assert launcher.call("report", "a", "--html", "link", stderr=full).returncode == 0
    assert (launcher.directory / "link").is_symlink()
    assert (launcher.directory / "page.html").read_text().endswith("</html>\n")
    os.mkfifo(launcher.directory / "pipe")
    for place in ("runs", "missing/a", "page.html/x", "pipe"):
        with pytest.raises((UsageError, UnreadableError)) as caught:
            put(str(launcher.directory / place), b"", hint="")
        assert caught.value.exit_code == 2
    assert {path.name for path in launcher.directory.iterdir()} == {"runs", "page.html", "link", "pipe"}


def test_a_page_replaces_no_other_file_unless_forced(launcher, runs):
    runs.make(losses=[3.0])
    launcher.write("train.py", "print()\n")
    launcher.write("page.html", runs.page("a"))
    launcher.write("new.html")
    refused = launcher.refused(2, "report --html train.py", "report --force")
    assert "train.py exists and is not a page" in refused
    for name in ("page.html", "new.html"):
        launcher.call("report", "--html", name, code=0)
    launcher.call("report", "--html", "train.py", "--force", code=0)
    assert (launcher.directory / "train.py").read_text().endswith("</html>\n")


@pytest.mark.parametrize("name", ["latest", "latest~1", "20260101-000000-trial", "20260101", "trial"])
def test_the_name_of_a_run_is_no_file_for_the_page(launcher, runs, name):
    runs.make("20260101-000000-trial", losses=[3.0])
    assert "tlaunch report --html report.html" in launcher.refused(2, f"report --html {name}")


def test_only_pages_need_matplotlib(launcher, runs, monkeypatch):
    runs.make(losses=[3.0])
    launcher.refused(2, *(f"report a {words}" for words in ("--html ''", "--html x/", "--html - --json", "nowhere")))
    with_it = launcher.scene("report a", "report a --json", code=0)
    from launcher.cli.commands import report

    monkeypatch.delitem(sys.modules, "launcher.cli.commands.report.drawing")
    monkeypatch.delattr(report, "drawing")
    for missing, told in (("matplotlib", "pip install matplotlib"), ("matplotlib.figure", "cannot be loaded")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, missing, None)
            assert launcher.scene("report a", "report a --json", code=0) == with_it
            assert told in launcher.refused(2, "report a --html x")


def test_what_was_printed_is_reported_where_nothing_else_was_measured(launcher):
    launcher.runs.mkdir()
    regex = r"at=(?P<step>\d+) cost=(?P<loss>\S+)"
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(AGENT, None, 2)], progress_regex=regex)
    run_dir.train_log(1).write_text("at=7 cost=2\nat=8 cost=1\nstep 9 loss 0\n")
    done = launcher.call("report", "a")
    said = ("without metrics.jsonl" in done.stdout, "device1/train.log" in done.stdout)
    assert (done.returncode, said) == (0, (True, True)), done.stderr
    figures = json.loads(launcher.call("report", "a", "--json").stdout)["runs"][0]
    assert (figures["steps"], figures["final_loss"], figures["printed_by"]) == (8, 1.0, 1)
    assert not figures["counts_samples"]


def test_a_number_that_is_the_least_possible_is_called_so(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(AGENT, None, 1)])
    run_dir.train_log(0).write_text("".join(f"Epoch: {n} [{at}/128 (1%)]\tLoss: 2\n" for n in (1, 2) for at in (0, 96)))
    said = launcher.call("report", "a").stdout
    assert re.search(r"^  samples +at least 192$", said, re.MULTILINE), said
    assert "counted on from the last line of each epoch" in " ".join(said.split())
    assert json.loads(launcher.call("report", "a", "--json").stdout)["runs"][0]["steps_at_least"]


def test_samples_that_were_printed_are_called_so(launcher):
    launcher.runs.mkdir()
    for name, text in (("a", "loss: 2.5  [   64/  128]\nloss: 1.5  [  128/  128]\n"), ("b", "step 1200 loss 2\n")):
        run_dir = acted_run.make(launcher.runs / name, [AgentStarted(AGENT, None, 1)])
        run_dir.train_log(0).write_text(text * 2)
    printed = launcher.call("report", "a").stdout
    rows = [line.split() for line in printed.splitlines()]
    assert ["samples", "256"] in rows
    assert any(row[:7] == ["lowest", "training", "loss", "1.5000", "at", "sample", "128"] for row in rows)
    assert "samples and losses come from the last lines" in printed
    assert json.loads(launcher.call("report", "a", "--json").stdout)["runs"][0]["counts_samples"]
    both = launcher.call("report", "a", "b", env={"COLUMNS": "120"}).stdout
    assert ["steps", "256", "samples", "1,200"] in [line.split() for line in both.splitlines()]
