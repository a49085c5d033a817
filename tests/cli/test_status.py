"""`tlaunch status`."""

import json

from launcher.cli.commands.status import GIVING_WAY
from launcher.cli.text.columns import fitted
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, NotBegun, RankEnded, RankStarted
from launcher.core.heartbeat import Beat, beat
from tests.programs import acted_run

from .failed_run import AGENT


def give_signs_of_life(run_dir):
    values = Beat(step=12, loss=3.25, tokens_per_s=5100.0)
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, values)
    run_dir.train_log(0).write_bytes(b"x" * 2048)


def row(text, global_rank):
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [str(global_rank)])


def test_every_rank_is_shown(launcher, snapshot):
    with acted_run.playing(launcher.runs / "a", "stopped"):
        give_signs_of_life(acted_run.RunDir(launcher.runs / "a"))
        done = launcher.call("status", "a")
        whole = json.loads(launcher.call("status", "a", "--json").stdout)
    assert done.returncode == 0, done.stderr
    pids = [str(rank["pid"]) for rank in whole["each"]]
    rows = [row(done.stdout, rank) for rank in range(2)]
    assert [cells[4] for cells in rows] == pids
    assert [" ".join(cells[:4] + cells[5:7]) for cells in rows] == snapshot
    assert "2.0 KiB" in done.stdout
    assert [rank["state"] for rank in whole["each"]] == ["running", "stopped"]
    first = whole["each"][0]
    assert (whole["state"], first["heartbeat"]["step"], first["log_bytes"]) == ("running", 12, 2048)


def test_a_narrow_terminal_keeps_the_pid(snapshot):
    header = ("RANK", "SERVER", "DEVICE", "STATE", "PID", "STEP", "LOSS", "BEAT", "LOG", "WRITTEN", "END")
    row = ("0", "127.0.0.1", "0", "running", "3211970", "12600", "0.0370", "0.2 s", "530.5 KiB", "0.2 s", "-")
    tables = [fitted(header, [row], width, giving_way=GIVING_WAY) for width in (90, 80, 60, 50, 40)]
    assert "\n".join(line for table in tables for line in table) == snapshot


def test_a_run_that_is_over_shows_how_its_ranks_ended(launcher, snapshot):
    events = [
        AgentStarted(AGENT, None, 3), RankStarted(0, 8), RankEnded(0, 8, -11),
        RankEnded(1, None, 127, "there is no program\x1b[2J"), AgentEnded(Cause.FAILED, 139),
    ]  # fmt: skip
    acted_run.make(launcher.runs / "a", events, ranks=3, max_restarts=2)
    done = launcher.call("status", launcher.runs / "a")
    assert launcher.transcript(done) == snapshot


def test_ranks_of_a_run_that_never_began_wait_for_nothing(launcher, snapshot):
    events = [AgentStarted(AGENT, None, 2), NotBegun("server h2 did not come"), AgentEnded(Cause.FAILED, 1)]
    acted_run.make(launcher.runs / "a", events)
    assert launcher.scene("status a", code=0) == snapshot


def test_a_run_elsewhere_is_said_to_be_there(launcher):
    acted_run.make(launcher.runs / "a", [AgentStarted(AGENT, None, 1), RankStarted(0, 8)], ranks=1)
    done = launcher.call("status", "a")
    assert (done.returncode, row(done.stdout, 0)[3]) == (0, "running")
    assert "on another" in done.stdout.splitlines()[0]


def test_whatever_a_heartbeat_says_is_shown(launcher):
    with acted_run.playing(launcher.runs / "a"):
        run_dir = acted_run.RunDir(launcher.runs / "a")
        run_dir.heartbeat(0).write_text(f'{{"step": 1{"0" * 400}, "loss": NaN, "device_memory_bytes": 1{"0" * 400}}}')
        run_dir.heartbeat(1).write_text('{"step": 2, "loss": -Infinity}')
        done = launcher.call("status", "a")
        as_json = launcher.call("status", "a", "--json")
        top = launcher.call("top", "a")
    assert (done.returncode, row(done.stdout, 0)[6]) == (0, "nan"), done.stderr
    assert (top.returncode, row(top.stdout, 1)[3]) == (0, "-inf"), top.stderr
    each = json.loads(as_json.stdout, parse_constant=refuse)["each"]
    assert [rank["heartbeat"]["loss"] for rank in each] == [None, None]


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def test_restarts_are_told_once(launcher):
    with acted_run.playing(launcher.runs / "a"):
        acted_run.append(acted_run.RunDir(launcher.runs / "a"), AttemptStarted(1, 2))
        assert ", restarted 1x" in launcher.call("status", "a").stdout
        record = launcher.runs / "a" / "run.json"
        record.write_text(record.read_text().replace('"max_restarts": 0', '"max_restarts": 2'))
        shown = launcher.call("status", "a").stdout
    assert "  restarts: 1 of at most 2\n" in shown
    assert "restarted" not in shown


def test_the_run_that_goes_on_is_meant(launcher):
    acted_run.make(launcher.runs / "over", [AgentEnded(Cause.FINISHED, 0)])
    launcher.latest.symlink_to("over")
    with acted_run.playing(launcher.runs / "a"):
        for command in (["status"], ["top"]):
            done = launcher.call(*command)
            assert (done.stdout.strip("─ ").startswith("a"), done.stderr) == (True, "")
        assert launcher.call("why").stdout.startswith("over")
        with acted_run.playing(launcher.runs / "b"):
            done = launcher.call("status")
            assert (done.stdout[:10], done.stderr[-4:]) == ("b: running", ": a\n")
            assert done.stderr in launcher.call("stacks").stderr
    assert launcher.call("status").stdout.startswith("over")


def test_ranks_that_are_alike_share_a_row(launcher):
    me = acted_run.me()
    events = [AgentStarted(me, None, 20), *(RankStarted(rank, me.pid, me.started) for rank in range(20))]
    run_dir = acted_run.make(launcher.runs / "a", [*events, RankEnded(3, me.pid, -9)], ranks=20, per_server=8)
    for rank in range(20):
        run_dir.train_log(rank).write_text(f"step {7 if rank == 12 else 40} loss 1.{rank:02}\n")
    lines = launcher.call("status", "--group", "a").stdout.splitlines()
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert [cells[:1] + cells[3:7] for cells in table[1:4]] == [
        ["3", "ended", str(me.pid), "40", "1.0300"],
        ["12", "running", str(me.pid), "7", "1.1200"],
        ["0-2,4-11,13-19", "running", str(me.pid), "40", "1.0000..1.1900"],
    ]
    assert lines[-1] == "figures of ranks 0-19 are read from logs"
    each = launcher.call("status", "a").stdout
    assert [row(each, rank)[5] for rank in (0, 12)] == ["40", "7"]


def test_figures_of_logs_stand_apart_from_heartbeats(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(AGENT, None, 2)])
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=12))
    run_dir.train_log(0).write_text("step 13 loss 1\n")
    run_dir.train_log(1).write_text("epoch 2 step 3/9 loss 1.5\n")
    first, second = json.loads(launcher.call("status", "a", "--json").stdout)["each"]
    assert (first["heartbeat"]["step"], first["log_figures"], second["heartbeat"]) == (12, None, None)
    assert second["log_figures"] == {
        "step": 3, "last_step": 9, "epoch": 2.0, "loss": 1.5, "tokens_per_s": None, "steps_per_s": None, "counts_samples": False,
    }  # fmt: skip


def test_another_expression_may_be_given_for_the_lines_of_ranks(launcher):
    run_dir = acted_run.make(launcher.runs / "a", [AgentStarted(AGENT, None, 2)], progress_regex=r"own=(?P<step>\d+)")
    run_dir.train_log(1).write_text("own=3 at=4\nstep 5 loss 1\n")
    assert row(launcher.call("status", "a").stdout, 1)[5] == "3"
    given = ["--progress-regex", r"at=(?P<step>\d+)", "a"]
    assert row(launcher.call("status", *given).stdout, 1)[5] == "4"
    assert row(launcher.call("top", *given).stdout, 1)[2] == "4"
    assert json.loads(launcher.call("report", "--json", *given).stdout)["runs"][0]["steps"] == 4
    for command in ("status", "top", "report"):
        refused = launcher.call(command, "--progress-regex", "(", "a")
        assert (refused.returncode, "hint: " in refused.stderr) == (2, True)
