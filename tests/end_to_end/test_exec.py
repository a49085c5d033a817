"""`tlaunch exec` under a real mpirun: one process per device, checked, with all that a rank of `tlaunch run` gets."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from launcher.core.run_dir import RunDir

from .conftest import PROGRAMS, TLAUNCH, TOLD, environment, executable, own_address, stub_of_mpi4py, table_of, tlaunch

SHOW = (sys.executable, TOLD)
OTHER_MPI = "MPICH Version:      5.0.2\nMPICH configure:    --with-pm=hydra\n"


def test_every_rank_gets_its_place_and_writes_its_own_log(mpirun, tmp_path):
    """The table says which device it has; words, names and values arrive as they are.

    A program that does not speak of MPI is not asked for its own, which does not go with this mpirun. A port of the
    environment is not used, as ranks on other servers may not have it.
    """
    file = table_of(tmp_path / "a table.json", {own_address(): (3, 2, 1, 0)})
    odd = ["a b", "$(touch x)", "--dp", "-1", "line\nbreak", "'\""]
    options = ["--rank-table", file, "--mp", "2", "--name", "my $(x) run", "--env", "WORD=a\nb 'c'"]
    stub = stub_of_mpi4py(tmp_path / "packages", OTHER_MPI)
    env = {"ROLE_NAME": "torchrun's", "MASTER_PORT": "13451", "PYTHONPATH": str(stub)}
    done = mpirun.exec(4, *options, "--runs-dir", "runs here", "--", *SHOW, *odd, env=env)
    assert done.returncode == 0, done.stderr
    run = (tmp_path / "runs here" / "latest").resolve()
    assert run.name.startswith("my $(x) run-")
    shown = [json.loads((run / f"device{rank}" / "train.log").read_text()) for rank in range(4)]
    environments = [each["env"] for each in shown]
    for name in ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK"):
        assert [each[name] for each in environments] == ["0", "1", "2", "3"]
    assert [each["DEVICE_ID"] for each in environments] == ["3", "2", "1", "0"]
    [(_, port)] = {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in environments}
    common = {
        "RANK_TABLE_FILE": str(file), "TLAUNCH_DP": "2", "TLAUNCH_MP": "2", "WORLD_SIZE": "4", "WORD": "a\nb 'c'",
        "ROLE_NAME": None, "TLAUNCH_RUN_DIR": str(run),
    }  # fmt: skip
    assert all({name: each.get(name) for name in common} == common for each in environments)
    assert all(each["words"] == odd for each in shown)
    # The engine has the programs themselves as its children: no process of tlaunch stays in between.
    assert (len({each["parent"] for each in shown}), len({each["pid"] for each in shown})) == (1, 4)
    assert "ROLE_NAME=torchrun's from the environment (torchrun?) is removed" in done.stderr
    assert port != "13451"
    said = "MASTER_PORT=13451 in the environment is not used, because ranks on other servers may not have it; "
    assert f"{said}{port} is" in done.stderr
    assert done.stderr.count("MASTER_PORT") == 1
    assert not (tmp_path / "x").exists()


def test_a_rank_gets_what_tlaunch_run_gives_it(mpirun, tmp_path):
    """All its variables, apart from the run's own name and port and what the engine adds."""
    file = table_of(tmp_path / "table.json", [own_address()])
    common = ("--env", "API_TOKEN=s3cr3t", "--rank-table", file)
    alone = ("run", "--console", "none", "--bind", "none", *common, "--runs-dir", "run", "--", *SHOW)
    assert tlaunch(*alone, cwd=tmp_path).returncode == 0
    assert mpirun.exec(2, *common, "--runs-dir", "exec", "--", *SHOW).returncode == 0
    ours = r"(RANK|LOCAL_|WORLD_|GROUP_|MASTER_ADDR|DEVICE|TLAUNCH_(DP|MP|PP|MICRO|ATT|MAX)|TORCHELASTIC_(RES|MAX)|PYTHONUNB|API_TOKEN).*"

    def variables(kind, rank):
        lines = (tmp_path / kind / "latest" / f"device{rank}" / "env.log").read_text().splitlines()
        return [line for line in lines if re.match(ours, line)]

    assert variables("exec", 0) == variables("run", 0)
    assert variables("exec", 1) == variables("run", 1)
    assert "API_TOKEN=********" in variables("exec", 1)


def test_the_first_failure_is_announced_once(mpirun):
    """By the rank that it is of, on the stderr that mpirun shows, with commands that find the run."""
    fail = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('bad')\ntime.sleep(20)"
    done = mpirun.exec(2, "--", sys.executable, "-c", fail)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "error: rank 1: ValueError: bad, at <string>:2 in <module>\n" in done.stderr
    [why] = re.findall(r"`tlaunch (why \S+)`", done.stderr)
    assert "rank 1: ValueError: bad" in tlaunch(*why.split(), cwd=mpirun.directory).stdout
    assert "ValueError" in tlaunch("logs", *why.split()[1:], "--rank", "1", cwd=mpirun.directory).stdout


@pytest.mark.parametrize("mark", [None, "/dev/full", "/nowhere/at/all"])
def test_where_the_run_is_is_said_by_whichever_rank_is_first(tmp_path, mark):
    """And so before any program fails, at which the engine ends ranks that are still to begin: rank 0 here.

    Where they cannot know which of them that is, as on a full disk, rank 0 says it.
    """
    if mark is not None:
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        RunDir(tmp_path / "runs" / "mine").announced.symlink_to(mark)
    said = []
    for rank in ("1", "0"):
        env = environment({"PMI_SIZE": "2", "PMI_RANK": rank, "TLAUNCH_RUN_ID": "mine"})
        done = tlaunch("exec", "--", "sh", "-c", "exit 0", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        said.append("2 ranks of MPICH or Intel MPI in runs/mine\n" in done.stderr)
    assert said == ([True, False] if mark is None else [False, True])


def test_mpi_in_the_program_sees_its_world(mpirun):
    pytest.importorskip("mpi4py")
    done = mpirun.exec(4, "--mp", "2", "--", sys.executable, PROGRAMS / "mpi_world_rank.py", "well")
    assert done.returncode == 0, done.stderr
    assert mpirun.logs() == [f"{rank} 4 {rank} 6\n" for rank in range(4)]


def test_a_program_whose_mpi_is_not_that_of_mpirun_is_refused_before_it_starts(mpirun, tmp_path):
    """Its ranks would be alone, each in a world of its own, and mpirun would end with 0."""
    stub = stub_of_mpi4py(tmp_path / "packages", OTHER_MPI)
    script = tmp_path / "program.py"
    script.write_text("import os\nfrom mpi4py import MPI\nopen(f'started{os.environ[\"RANK\"]}', 'w')\n")
    done = mpirun.exec(2, "--", sys.executable, script, env={"PYTHONPATH": str(stub)})
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("error: ") == 1
    said = rf"mpi4py of {re.escape(sys.executable)} loads MPICH 5\.0\.2, which does not work with Open MPI \S+ \(/\S+/mpirun\): "
    assert re.search(said, done.stderr)
    assert "hint: put that MPI's mpirun first on PATH" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packages", "program.py"]


def test_other_commands_say_what_can_be_known_of_the_run(mpirun, tmp_path):
    """Its logs, that its ranks have ended, and that only the engine knows how."""
    assert mpirun.exec(2, "--name", "mine", "--", "sh", "-c", "echo line of $RANK; sleep 0.5").returncode == 0
    assert tlaunch("logs", cwd=tmp_path).stdout == "[0] line of 0\n[1] line of 1\n"
    status = tlaunch("status", cwd=tmp_path)
    assert re.match(r"mine-\S+: ended: Open MPI started it .* ago and has its exit codes\n", status.stdout)
    assert len(re.findall(r"^ +[01] +127\.0\.0\.1 +[01] +gone +\d+ .* 10 B ", status.stdout, re.MULTILINE)) == 2
    report = tlaunch("report", cwd=tmp_path)
    assert (report.returncode, ": ended: Open MPI" in report.stdout) == (0, True)
    why = tlaunch("why", cwd=tmp_path).stdout
    assert "  no rank recorded a failure; killed ranks" in why
    first = tlaunch("logs", "--rank", "failed", cwd=tmp_path)
    assert (first.returncode, "no rank of the run recorded a failure" in first.stderr) == (2, True)
    ps = tlaunch("ps", cwd=tmp_path)
    assert (ps.returncode, ps.stdout) == (0, "")
    assert ps.stderr == "no run is active in runs; --all lists finished runs too\n"
    assert re.search(r"^mine-\S+ +ended +2 ", tlaunch("ps", "--all", cwd=tmp_path).stdout, re.MULTILINE)
    stop = tlaunch("stop", "latest", cwd=tmp_path)
    assert (stop.returncode, "is not running: ended" in stop.stderr) == (0, True)


def test_while_its_ranks_run_a_run_is_listed_and_left_to_its_engine(mpirun, tmp_path):
    """With how many of them are seen; commands without a name take it for the one that goes on."""
    noted = "until [ -e $TLAUNCH_RUN_DIR/device1/process.json ]; do sleep 0.05; done"
    shown = f"{noted}; tlaunch ps > ps.txt 2>&1; tlaunch stacks > stacks.txt 2>&1; tlaunch stop latest > stop.txt 2>&1"
    program = (
        f"if [ $RANK = 0 ]; then {shown}; echo $? > code.txt; touch done; fi; until [ -e done ]; do sleep 0.05; done"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert mpirun.exec(2, "--name", "mine", "--", "sh", "-c", program, env={"PATH": path}).returncode == 0
    assert re.search(r"^mine-\S+ +unwatched +2/2 ", (tmp_path / "ps.txt").read_text(), re.MULTILINE)
    stacks = (tmp_path / "stacks.txt").read_text()
    assert stacks.startswith("mine-")
    assert all(f"rank {rank}" in stacks for rank in (0, 1))
    assert "end the mpirun or srun that started it" in (tmp_path / "stop.txt").read_text()
    assert (tmp_path / "code.txt").read_text() == "1\n"


def test_a_failing_rank_tells_as_under_run_and_its_code_goes_to_the_engine(mpirun, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\ntime.sleep(0.5)\nif os.environ['RANK'] == '1':\n    raise ValueError('of rank 1')\ntime.sleep(5)\n"
    )
    done = mpirun.exec(2, "--", sys.executable, script)
    assert done.returncode == 1
    failure = json.loads((mpirun.latest / "device1" / "failure.json").read_text())
    found = (failure["type"], failure["message"], failure["where"])
    assert found == ("ValueError", "of rank 1", "fails.py:4 in <module>")
    assert "ValueError: of rank 1" in tlaunch("logs", "--errors", cwd=tmp_path).stdout
    lines = tlaunch("why", cwd=tmp_path).stdout.splitlines()
    assert "  ranks recorded failures themselves; killed ranks and programs other than Python record none" in lines
    assert "rank 1: ValueError: of rank 1, at fails.py:4 in <module>" in lines
    assert any(line.startswith("  likely: ") for line in lines)
    known = json.loads(tlaunch("why", "--json", cwd=tmp_path).stdout)
    assert (known["culprit"], known["attempts"][0]["verdict"]["culprit"]) == (1, 1)
    assert "ValueError: of rank 1" in tlaunch("logs", "--rank", "failed", cwd=tmp_path).stdout


def test_output_can_be_left_to_the_engine(mpirun):
    """--no-log keeps env.log only. Of a sample table the first rank says where it is from; it is worth no warning."""
    table = ("--rank-table", "rank_tables/rank_table_2pcs.json")
    done = mpirun.exec(2, "--no-log", *table, "--", "sh", "-c", "echo out of $RANK; sleep 0.5")
    assert sorted(re.findall(r"out of \d", done.stdout)) == ["out of 0", "out of 1"]
    assert mpirun.logs() == []
    assert (mpirun.latest / "device1" / "env.log").stat().st_size > 0
    assert done.stderr.count("not found; using the packaged sample ") == 1
    assert "not known to be this machine" not in done.stderr


def test_ranks_with_other_options_are_refused(mpirun):
    """A layout that only some of them have."""
    start = [*TLAUNCH, "exec"]
    done = mpirun(2, *start, "--mp", "2", "--", *SHOW, ":", "-n", "2", *start, "--pp", "2", "--", *SHOW)
    assert done.returncode == 3, done.stderr
    assert "were started with different settings: this rank has dp=2 " in done.stderr


def test_no_job_gets_into_the_directory_of_another(mpirun):
    """A whole name counts more than an option, which is told; one that was used is refused by every rank, and told once.

    An option counts more than the environment.
    """
    options = ("--name", "foo", "--master-port", "13452", "--", *SHOW)
    env = {"TLAUNCH_RUN_ID": "given", "MASTER_PORT": "13451"}
    done = mpirun.exec(2, *options, env=env)
    assert (done.returncode, mpirun.latest.name) == (0, "given")
    assert done.stderr.count("--name foo is not used: TLAUNCH_RUN_ID=given is the complete name") == 1
    before = mpirun.logs()
    assert [each["MASTER_PORT"] for each in mpirun.environments()] == ["13452"] * 2
    done = mpirun.exec(2, *options, env=env)
    assert (done.returncode, mpirun.latest.name) == (2, "given")
    assert done.stderr.count("already contains an earlier run") == 1
    assert mpirun.logs() == before


REFUSED = {
    "too few ranks": (["--devices", "4"], 3, "started 2 ranks, but dp * mp * pp = 4 * 1 * 1 = 4"),
    "a table that is not there": (["--rank-table", "nowhere.json"], 2, "nowhere.json"),
    "an option that it does not have": (["--nosuch"], 2, "tlaunch exec has no option --nosuch"),
    "a server of no table": (["--server", "h7"], 2, "--server h7 is not a server in the rank table"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_once_and_nothing_is_written(mpirun, tmp_path, case):
    options, code, message = REFUSED[case]
    done = mpirun.exec(2, *options, "--", *SHOW)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("error: ") == 1
    assert message in done.stderr
    assert re.search(rf"\(rank [01] on {re.escape(os.uname().nodename)}\)", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_table_is_refused_with_its_lines(mpirun, tmp_path):
    file = table_of(tmp_path / "table.json", {own_address(): (0, 5)})
    done = mpirun.exec(2, "--rank-table", file, "--", *SHOW)
    assert (done.returncode, done.stderr.count("error[RT301]")) == (3, 1)


def test_ranks_on_a_machine_that_the_table_does_not_have_are_refused(mpirun, tmp_path):
    """Unless somebody says which server it is, and then only that one's ranks are right."""
    file = table_of(tmp_path / "table.json", ["192.0.2.77", "192.0.2.78"], 1)
    done = mpirun.exec(2, "--rank-table", file, "--", *SHOW)
    assert (done.returncode, done.stderr.count("which is not one of the table's servers")) == (3, 1)
    assert "192.0.2.77 slots=1, 192.0.2.78 slots=1" in done.stderr
    here = [f"TLAUNCH_SERVER=192.0.2.7{number}" for number in (7, 8)]
    first, second = (["env", name, *TLAUNCH, "exec", "--rank-table", file, "--", *SHOW] for name in here)
    assert mpirun(1, *first, ":", "-n", "1", *second).returncode == 0
    assert [each["GROUP_RANK"] for each in mpirun.environments()] == ["0", "1"]
    wrong = mpirun(1, *second, ":", "-n", "1", *first)
    assert wrong.returncode == 3
    assert re.search(r"rank [01] is on server 192\.0\.2\.7[78] \(--server\), but the rank table has rank", wrong.stderr)


def test_devices_that_stay_idle_are_cut_from_the_table(mpirun, tmp_path):
    """Each rank finds the table of this run when it starts. That its one server is another one is only worth a warning."""
    file = table_of(tmp_path / "table.json", ["192.0.2.77"], 4)
    options = ("--rank-table", file, "--dp", "2", "--allow-idle-devices")
    done = mpirun.exec(2, *options, "--", "sh", "-c", "cat $RANK_TABLE_FILE; sleep 0.5")
    assert done.returncode == 0, done.stderr
    tables = [json.loads(log) for log in mpirun.logs()]
    assert [len(each["server_list"][0]["device"]) for each in tables] == [2, 2]
    assert "the layout uses 2 of 4 devices; the devices of ranks 2 to 3 are idle" in done.stderr
    assert done.stderr.count("192.0.2.77 of the rank table does not seem to be this machine") == 1


@pytest.mark.parametrize(("content", "code"), [("#!{inner}\n", 127), ("junk\0", 126)])
def test_a_program_that_cannot_start_is_told_by_the_engine(mpirun, tmp_path, content, code):
    """Though its output goes to a file. An interpreter that is there may be a script itself, of one that is not."""
    inner = executable(tmp_path / "inner", "#!/no/such/interpreter\n")
    program = executable(tmp_path / "program", content.format(inner=inner))
    done = mpirun.exec(1, "--", program)
    assert (done.returncode, f"error: cannot start {program}: " in done.stderr) == (code, True)


def test_without_an_engine_nothing_is_started(tmp_path):
    """The message names what would have been one."""
    done = tlaunch("exec", "--", "true", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "mpirun or srun did not start this process" in done.stderr
    assert "without mpirun and srun, use `tlaunch run`" in done.stderr
