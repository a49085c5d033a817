"""Two users on one machine: neither acts on the other's runs and processes, and root not on anybody's by their files.

Files of other users can be made by root alone.
"""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from launcher.core.events import AgentEnded, AgentStarted, Cause, RankStarted
from launcher.core.machine.proc import identify
from launcher.core.run_dir import RunDir
from tests.programs import acted_run

from .conftest import Launcher

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")

ONE, OTHER, ROOT = 65533, 65534, 0
OVER = [AgentEnded(Cause.FINISHED, 0)]


def become(uid):
    return ["setpriv", f"--reuid={uid}", "--clear-groups"] if uid else []


class Users:
    def __init__(self, launcher):
        self.launcher = launcher
        self.directory, self.runs = launcher.directory, launcher.runs

    def call(self, uid, *words, **options):
        argv = [*become(uid), *self.launcher.argv(*words)]
        return self.launcher.ended(argv, **{"stdin": subprocess.DEVNULL, **options})

    def give(self, path, uid):
        for each in (path, *path.rglob("*")):
            os.lchown(each, uid, uid)

    @contextmanager
    def process(self, uid, **options):
        process = subprocess.Popen([*become(uid), "sleep", "1000"], **options)
        program = Path(f"/proc/{process.pid}/cmdline")
        self.launcher._wait_until(lambda: program.read_bytes().startswith(b"sleep"), "that it is the user's program")
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def naming(self, process, owner, role="head", name="named"):
        named, gone = identify(process.pid), acted_run.someone_gone()
        events = [AgentStarted(named if role == "agent" else gone, named if role == "head" else gone, 1)]
        events.append(RankStarted(0, process.pid if role == "rank" else gone.pid, named.started))
        run_dir = acted_run.make(self.runs / name, events, ranks=1)
        self.give(run_dir.root, owner)
        return run_dir


@pytest.fixture
def users(wait_until):
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:  # pytest keeps others out of its own
        Path(parent).chmod(0o1777)
        launcher = Launcher(Path(parent), wait_until)
        launcher.runs.mkdir()
        launcher.runs.chmod(0o1777)
        tried = launcher.ended([*become(ONE), *launcher.argv("--version")])
        if tried.returncode:
            pytest.skip(f"another user cannot run this Python, or setpriv is missing: {tried.stderr}")
        yield Users(launcher)
        launcher.close()


def lives(process):
    return process.poll() is None and identify(process.pid).lives


@pytest.mark.parametrize("words", [(), ("--kill",)], ids=["stop", "kill"])
@pytest.mark.parametrize("role", ["head", "agent", "rank"])
@pytest.mark.parametrize("caller", [ROOT, ONE])
def test_a_file_cannot_have_others_signalled(users, caller, role, words):
    with users.process(ONE) as process:
        run_dir = users.naming(process, OTHER, role)
        done = users.call(caller, "stop", "--timeout", 2, *words, run_dir.root)
        assert (done.returncode, lives(process)) == (1, True), done.stderr
        assert ("another user" if caller else f"process {process.pid}") in done.stderr


def test_ranks_of_another_user_show_no_stack(users):
    with users.process(ONE) as process:
        run_dir = users.naming(process, OTHER, "rank")
        for caller in (ROOT, ONE):
            done = users.call(caller, "stacks", run_dir.root)
            assert (done.returncode, "no live rank" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("role", ["head", "rank"])
def test_processes_of_a_run_of_root_may_have_become_another_user(users, role):
    """As with `setpriv` or `su` in a container; what root has recorded counts."""
    with users.process(ONE) as process:
        run_dir = users.naming(process, ROOT, role)
        users.call(ROOT, "stop", "--timeout", 2, run_dir.root)
        assert process.wait(60) == -signal.SIGTERM


def test_other_processes_in_the_group_of_a_rank_are_spared(users):
    """As where root's script has started a program of the user in one job."""
    with users.process(ONE, preexec_fn=os.setpgrp) as rank:
        run_dir = users.naming(rank, ONE, "rank")
        with users.process(ROOT, preexec_fn=partial(os.setpgid, 0, rank.pid)) as bystander:
            done = users.call(ROOT, "stop", run_dir.root)
            assert (done.returncode, rank.wait(60), lives(bystander)) == (0, -signal.SIGTERM, True), done.stderr


@pytest.mark.parametrize("swapped", ["events.jsonl", "."])
def test_a_link_makes_no_other_owner(users, swapped):
    with users.process(ONE) as process:
        genuine = users.naming(process, ONE, name="genuine").root
        lie = users.runs / "lie"
        if swapped == ".":
            lie.symlink_to(genuine)
            os.lchown(lie, OTHER, OTHER)
        else:
            acted_run.make(lie, ranks=1)
            (lie / swapped).symlink_to(genuine / swapped)
            users.give(lie, OTHER)
        done = users.call(ROOT, "stop", "--timeout", 2, lie)
        assert (done.returncode != 0, lives(process)) == (True, True), done.stderr


def test_root_ends_runs_of_users_and_users_their_own(users):
    for caller in (ROOT, ONE):
        run = [*become(ONE), *users.launcher.argv("run", "-n", 1, "--", "sh", "-c", "echo ready; exec sleep 1000")]
        launched = users.launcher.begin(run)
        users.launcher.wait_ready(1)
        refused = users.call(OTHER, "stop", users.launcher.latest.resolve())
        assert (refused.returncode, "another user" in refused.stderr, launched.poll()) == (1, True, None)
        if caller == ROOT:
            unnamed = users.call(ROOT, "stop")
            assert (unnamed.returncode, "belongs to" in unnamed.stderr, launched.poll()) == (2, True, None)
        done = users.call(caller, "stop", users.launcher.latest.resolve())
        assert (done.returncode, launched.wait(60)) == (0, 128 + signal.SIGTERM), done.stderr
        users.launcher.latest.unlink()


def test_ones_own_run_comes_before_others(users):
    with users.process(ONE) as mine, users.process(OTHER) as theirs:
        users.naming(theirs, OTHER, "rank", name="theirs")
        users.naming(mine, ONE, "rank", name="mine")
        done = users.call(ONE, "stop")
        assert (done.returncode, mine.wait(60), lives(theirs)) == (0, -signal.SIGTERM, True), done.stderr


@pytest.mark.parametrize("typed", [[], ["latest"], ["named"], ["runs/named"]], ids=" ".join)
def test_a_command_of_another_user_is_not_run_unasked(users, typed):
    users.launcher.run("run", "-q", "-n", 1, "--name", "named", "--", "sh", "-c", "touch ran", code=0)
    (users.directory / "ran").unlink()
    users.give(users.launcher.latest.resolve(), OTHER)
    words = [str(users.launcher.latest.resolve()) if word == "runs/named" else word for word in typed]
    for caller in (ROOT, ONE):
        done = users.call(caller, "rerun", *words)
        assert (done.returncode, f"(uid {OTHER})" in done.stderr or f"uid {OTHER}" in done.stderr) == (2, True)
    assert "touch ran" in users.call(ONE, "rerun", "--dry-run", *words, code=0).stdout
    assert not (users.directory / "ran").exists()
    assert f"uid {OTHER}" in users.call(ONE, "rerun", "--yes", *words, code=0).stderr
    assert (users.directory / "ran").stat().st_uid == ONE


@pytest.mark.parametrize("name", ["train", "tra"])
@pytest.mark.parametrize("command", ["rerun", "stop"])
def test_a_link_of_another_user_leads_to_no_run_without_a_question(users, command, name):
    """Named by its whole name or the beginning of it. A path of one's own needs no question."""
    own = users.runs.parent / "own"
    run_dir = acted_run.make(own / "one", ranks=1)
    users.give(own, ONE)
    (users.runs / "train").symlink_to(run_dir.root)
    os.lchown(users.runs / "train", OTHER, OTHER)
    done = users.call(ONE, command, name)
    assert (done.returncode, "is a link that belongs to" in done.stderr) == (2, True), done.stderr
    assert "is a link" not in users.call(ONE, command, run_dir.root).stderr


def test_sudo_reruns_the_run_of_its_caller(users):
    users.launcher.run("run", "-q", "-n", 1, "--", "true", code=0)
    users.give(users.launcher.latest.resolve(), ONE)
    users.call(ROOT, "rerun", env={"SUDO_UID": str(ONE)}, code=0)
    assert users.call(OTHER, "rerun", env={"SUDO_UID": str(ONE)}).returncode == 2


@pytest.mark.parametrize("owned", ["tlaunch.toml", "pyproject.toml", ".git", "link"])
def test_a_project_file_of_another_user_is_refused(users, owned):
    """Or a repository, or a link in the file's place; where it is trusted, or not read, all is as ever."""
    project = users.directory / "project"
    below = project / "mine" / "below"
    below.mkdir(parents=True)
    (project / ".git").mkdir()
    name = "pyproject.toml" if owned == "pyproject.toml" else "tlaunch.toml"
    prefix = "tool.tlaunch." if owned == "pyproject.toml" else ""
    text = f'[{prefix}run]\nenv = ["PLANTED=1"]\n'
    if owned == "link":
        users.launcher.write("mine.toml", text)
        (project / name).symlink_to("../mine.toml")
    else:
        (project / name).write_text(text)
    os.lchown(project / (name if owned == "link" else owned), OTHER, OTHER)
    words = ("run", "-q", "-n", 1, "--runs-dir", users.runs, "--", "sh", "-c", "echo planted $PLANTED")
    for caller in (ROOT, ONE):
        done = users.call(caller, *words, cwd=below)
        assert (done.returncode, "belongs to" in done.stderr, list(users.runs.iterdir())) == (2, True, []), done.stderr
    for env, options, planted in (
        ({"TLAUNCH_SAFE_DIRECTORY": str(project)}, (), ["1"]), ({"SUDO_UID": str(OTHER)}, (), ["1"]), ({}, ("--no-config",), []),
    ):  # fmt: skip
        users.call(ROOT, *options, *words, cwd=below, env=env, code=0)
        assert (users.launcher.latest / "device0" / "train.log").read_text().split()[1:] == planted
    users.call(OTHER, "run", "--dry-run", "--", "true", cwd=below, code=0)


def test_root_may_own_the_project_file(users):
    users.launcher.write("tlaunch.toml", "[run]\ndevices = 2\n")
    shown = json.loads(users.call(ONE, "run", "--dry-run", "--json", "--", "true", code=0).stdout)
    assert shown["options"]["devices"] == 2


def test_prune_keeps_what_others_renamed(users):
    """In a directory where all may rename all, a name does not say that its owner was removing it."""
    users.runs.chmod(0o777)
    kept = acted_run.make(users.runs / ".kept.12345678.removed", OVER).root
    users.give(kept, ONE)
    users.give(acted_run.make(users.runs / "over", OVER).root, ONE)
    assert users.call(ONE, "prune", "--keep", 0, "--yes", code=0).stdout == "over\n"
    assert RunDir(kept).run_json.is_file()


def test_runs_of_another_user_are_not_pruned(users):
    run_dir = acted_run.make(users.runs / "a", OVER)
    users.give(run_dir.root, OTHER)
    assert "another user" in users.call(ONE, "prune", "--keep", 0, "--yes", code=0).stderr
    assert users.call(ROOT, "prune", "--keep", 0, "--yes", code=0).stdout == "a\n"


def test_no_rank_writes_into_a_directory_that_another_user_made(users):
    """Where a name is known beforehand, he may have made logs links to files of others."""
    precious = users.launcher.write("precious", "gold")
    os.chown(precious, ONE, ONE)
    device = users.runs / "job1" / "device0"
    device.mkdir(parents=True)
    (device / "train.log").symlink_to(precious)
    users.give(users.runs / "job1", OTHER)
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "TLAUNCH_RUN_ID": "job1"}
    env |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    done = users.call(ONE, "exec", "--devices", 1, "--", "echo", "other words", env=env)
    assert (done.returncode, "belongs to" in done.stderr, precious.read_text()) == (2, True, "gold"), done.stderr


def test_what_others_may_read(users):
    """As far as the umask allows; the environment of ranks, which may hold secrets, never."""
    for umask, code in ((0o022, 0), (0o077, 2)):
        run = users.launcher.argv("run", "-q", "-n", 1, "--", "echo", "hello")
        users.launcher.ended([*become(ONE), *run], umask=umask, code=0)
        root = users.launcher.latest.resolve()
        for command in ("status", "why", "logs", "report"):
            assert users.call(OTHER, command, root).returncode == code
        assert users.call(OTHER, "logs", "--env", root).returncode == 2


def test_another_users_link_is_not_the_latest(users):
    """In a sticky directory he alone can have it lead to a later run."""
    for uid, name in ((OTHER, "theirs"), (ONE, "mine")):
        users.call(uid, "run", "-q", "-n", 1, "--name", name, "--", "true", code=0)
    assert "-mine: finished" in users.call(ONE, "status", code=0).stdout


@pytest.mark.parametrize(("mode", "is_ended"), [("a", True), ("r", False)])
def test_a_process_that_writes_the_events_is_the_runs(users, mode, is_ended):
    """On file systems that map users to one, owners of files tell nothing; to read them is no sign."""
    root = users.runs / "mapped"
    acted_run.make(root, ranks=1)
    (root / "events.jsonl").touch()
    with (root / "events.jsonl").open(mode) as events, users.process(ROOT, stdout=events) as agent:
        acted_run.append(RunDir(root), AgentStarted(identify(agent.pid), None, 1))
        users.give(root, OTHER)
        done = users.call(ROOT, "stop", "--timeout", 2, root)
        assert lives(agent) != is_ended, done.stderr
