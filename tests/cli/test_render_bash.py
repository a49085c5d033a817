"""The run.sh of `tlaunch render bash`, run: what ranks get, how they end, and that no value is executed."""

import fcntl
import json
import os
import re
import signal
import sys
import termios
import time

import pytest

DUMP = "import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open(f'dumped{os.environ[\"RANK\"]}', 'w'))"
# A shell keeps these for itself, whatever it starts.
OF_A_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "PS1"}
# What differs from run to run.
OF_A_RUN = {"TLAUNCH_RUN_DIR", "TLAUNCH_RUN_ID", "TLAUNCH_HEARTBEAT_FILE"}
# As other launchers leave them, and what looks as if they did.
LEFT = {
    "RANK": "7", "MASTER_ADDR": "elsewhere", "RANK_TABLE_FILE": "/nowhere", "PMIX_RANK": "3", "PET_RDZV_ENDPOINT": "x",
    "SLURM_NTASKS": "4", "OMPI_COMM_WORLD_FOO": "1", "TORCHELASTIC_RUN_ID": "x", "PMIX_MCA_gds": "hash",
}  # fmt: skip
ODD = [
    "a  b ", "it's \"x\"", "$(touch bad)", "`touch bad`", "; touch bad", "new\nline\n", "--help", "-", "*", "\\", "",
    "${IFS}", "!!", "é", "\t", "~", "&& touch bad #", "<(touch bad)",
]  # fmt: skip
SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)


def dumped(launcher, ranks):
    """The environments and arguments of ranks."""
    found = [json.loads((launcher.directory / f"dumped{rank}").read_text()) for rank in range(ranks)]
    return [environment for environment, _ in found], [arguments for _, arguments in found]


@pytest.mark.parametrize("left", [{}, LEFT, {**LEFT, "SLURM_PROCID": "2"}], ids=["clean", "left", "in a step"])
@pytest.mark.parametrize(
    "ranks_and_layout", [(4, ["--mp", 2]), (8, ["--mp", 2, "--pp", 2, "--micro-batches", 4])], ids=["4", "8"]
)
def test_a_rank_gets_what_run_gives_it(launcher, script, sample_tables, left, ranks_and_layout):
    """The whole environment of each rank, but for the run's directory."""
    ranks, layout = ranks_and_layout
    table = sample_tables / f"rank_table_{ranks}pcs.json"
    arguments = ["--rank-table", table, *layout, "--name", "same", "--master-port", 29877, "--env", "X=a 'b'"]
    command = ["--", sys.executable, "-c", DUMP, "a b"]
    script.render(*arguments, *command)
    assert script.run(env=left).returncode == 0
    by_script, words = dumped(launcher, ranks)
    assert launcher.run("run", *arguments, *command, env=left).returncode == 0
    by_run, words_by_run = dumped(launcher, ranks)
    assert words == words_by_run
    for one, other in zip(by_script, by_run, strict=True):
        assert one.keys() - OF_A_SHELL == other.keys() - OF_A_SHELL
        compared = one.keys() - OF_A_SHELL - OF_A_RUN
        assert {name: one[name] for name in compared} == {name: other[name] for name in compared}
        assert one["TLAUNCH_HEARTBEAT_FILE"].startswith(one["TLAUNCH_RUN_DIR"] + "/device")
        assert one["TLAUNCH_RUN_ID"] in one["TLAUNCH_RUN_DIR"]


def test_choices_of_the_shell_stand(launcher, script):
    """As they do for `tlaunch run`: what is set when the script is run, not when it was rendered."""
    script.render("--devices", 1, "--", sys.executable, "-c", DUMP)
    assert script.run(env={"OMP_NUM_THREADS": "3", "PYTHONUNBUFFERED": ""}).returncode == 0
    [environment], _ = dumped(launcher, 1)
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONUNBUFFERED"]) == ("3", "")


def test_the_script_replaces_no_variable_of_the_environment(launcher, script):
    """Whatever it calls its own: every word of it is tried that could be a variable of somebody else's."""
    script.render("--devices", 1, "--env", "CHOSEN=1", "--env", "MY_TOKEN=x", "--", sys.executable, "-c", DUMP)
    theirs = dict.fromkeys(re.findall(r"\b_?([a-z][a-z_]*)\b", script.path.read_text()), "theirs")
    assert {"server", "ranks", "status"} <= theirs.keys()
    assert script.run(env=theirs).returncode == 0
    [environment], _ = dumped(launcher, 1)
    assert {name: environment.get(name) for name in theirs} == theirs


def test_the_script_replaces_no_function_of_the_environment(launcher, script):
    script.render("--devices", 1, "--env", "CHOSEN=1", "--", sys.executable, "-c", DUMP)
    names = re.findall(r"^_?([a-z_]+)\(\)", script.path.read_text(), re.MULTILINE)
    assert {"send", "give_up", "start_rank"} <= set(names)
    assert script.run(env={f"BASH_FUNC_{name}%%": "() { echo theirs; }" for name in names}).returncode == 0
    [environment], _ = dumped(launcher, 1)
    assert [name for name in names if "echo theirs" not in environment[f"BASH_FUNC_{name}%%"]] == []


def test_values_arrive_as_they_are(launcher, script):
    """In arguments, variables, and the names of directories; nothing of them is executed."""
    variables = [word for number, value in enumerate(ODD) for word in ("--env", f"ODD{number}={value}")]
    odd_names = ["--env", "IFS=x", "--env", "UID=5", "--env", "with.dots-=1", "--env", "BASH_ENV=$(touch bad)"]
    places = ["--runs-dir", "-r $(touch bad)\n'\"", "--name", "-n}`touch bad`'\""]
    script.render("--devices", 1, *variables, *odd_names, *places, "--", sys.executable, "-c", DUMP, *ODD)
    done = script.run()
    assert (done.returncode, done.stderr) == (0, "")
    [environment], [words] = dumped(launcher, 1)
    assert words == ODD
    assert [environment[f"ODD{number}"] for number in range(len(ODD))] == ODD
    assert (environment["IFS"], environment["UID"], environment["with.dots-"]) == ("x", "5", "1")
    assert environment["TLAUNCH_RUN_DIR"].startswith(f"{launcher.directory}/-r $(touch bad)\n'\"/2")
    assert environment["TLAUNCH_RUN_DIR"].endswith("--n}`touch bad`'\"")
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize("name", ["a\ntouch bad", "$(touch bad)", "`touch bad`", "a) touch bad ;;", "'", "-x", "a b"])
def test_names_of_servers_are_not_executed(launcher, script, table_of, name):
    """They stand in comments, and as an address where there are several."""
    script.render("--rank-table", table_of({name: [0], "other": [1]}), "--", sys.executable, "-c", DUMP)
    assert script.run("0").returncode == 0
    environment, _ = json.loads((launcher.directory / "dumped0").read_text())
    assert environment["MASTER_ADDR"] == name
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize(("name", "is_absolute"), [("sub", False), ("-a $(touch bad)\n'b'", True)])
def test_ranks_start_in_the_working_directory(launcher, script, name, is_absolute):
    """Below the one where the script is started, or anywhere, whatever its name is."""
    where = launcher.directory / name
    where.mkdir()
    script.render("--devices", 1, "--cwd", where if is_absolute else name, "--", sys.executable, "-c", DUMP)
    assert script.run().returncode == 0
    assert (where / "dumped0").exists()
    assert (where / "runs" / "latest" / "device0" / "train.log").exists()
    assert not list(launcher.directory.glob("**/bad"))


def test_env_log_has_what_the_script_sets(launcher, script):
    """As `tlaunch run` writes it, without secrets of --env, and without what the shell had anyway."""
    chosen = {"PLAIN": "back\\slash\nand\r more", "EMPTY": "", "COMPANY": "a=b", "OMP_NUM_THREADS": "3", "WORDS": "a b"}
    secrets = {"HF_TOKEN": "s3cr3t", "PROXY": "http://me:s3cr3t@host", "HEADER": "Authorization: Bearer s3cr3t"}
    variables = [word for name, value in {**chosen, **secrets}.items() for word in ("--env", f"{name}={value}")]
    arguments = ["--devices", 1, "--master-port", 29877, *variables]
    program = ["sh", "-c", "echo $HF_TOKEN"]
    script.render(*arguments, "--", *program)
    assert script.run(env={"MY_API_KEY": "s3cr3t", "OF_THE_SHELL": "x", "WORDS": "x"}).returncode == 0
    assert (launcher.latest / "device0" / "train.log").read_text() == "s3cr3t\n"
    log = launcher.latest / "device0" / "env.log"
    assert log.stat().st_mode & 0o777 == 0o600
    lines = log.read_text().splitlines()
    shown = dict(line.split("=", 1) for line in lines)
    assert len(shown) == len(lines)
    assert not shown.keys() & {*secrets, "MY_API_KEY", "OF_THE_SHELL", "PATH"}
    assert "s3cr3t" not in log.read_text()
    assert launcher.run("run", *arguments, "--", *program).returncode == 0
    by_run = dict(line.split("=", 1) for line in (launcher.latest / "device0" / "env.log").read_text().splitlines())
    assert {name: shown[name] for name in shown.keys() - OF_A_RUN} == {
        name: by_run[name] for name in shown.keys() - OF_A_RUN
    }
    assert {*chosen, "RANK", "MASTER_PORT", "WORLD_SIZE", "TLAUNCH_RUN_DIR"} <= shown.keys()


@pytest.mark.parametrize("environment", [{}, {"POSIXLY_CORRECT": "1"}], ids=["plain", "POSIX"])
def test_last_lines_cannot_act_on_a_terminal(launcher, script, environment):
    wrote = "\x1b[2Jred\x07 \u009b31m é\ttab\r\n"
    script.render("--devices", 1, "--", sys.executable, "-c", f"print({wrote!r}, flush=True); exit(3)")
    done = script.run(env=environment)
    assert "[2Jred 31m é\ttab\n" in done.stderr
    assert (launcher.latest / "device0" / "train.log").read_bytes().startswith(wrote.encode())


def test_a_directory_called_latest_stays_as_it_is(launcher, script):
    (launcher.runs / "latest").mkdir(parents=True)
    script.render("--devices", 1, "--", "true")
    assert script.run().returncode == 0
    assert list((launcher.runs / "latest").iterdir()) == []


def test_output_and_order(launcher, script):
    """A log per rank with both of its streams; runs that start in one second have names of their own."""
    script.render("--devices", 3, "--name", "n", "--", "sh", "-c", "echo out $RANK; echo err >&2; cat")
    for _ in range(3):
        assert script.run().returncode == 0
    runs = [path for path in launcher.runs.iterdir() if not path.is_symlink()]
    assert len(runs) == 3
    for run in runs:
        assert [(run / f"device{rank}" / "train.log").read_text() for rank in range(3)] == [
            f"out {rank}\nerr\n" for rank in range(3)
        ]


@pytest.mark.parametrize(
    ("deed", "code", "environment"),
    [
        ("exit 7", 7, {}),
        ("kill -KILL $$", 137, {}),
        ("kill -TERM $$", 143, {}),
        ("exec /nowhere", 127, {}),
        ("exit 7", 7, {"SHELLOPTS": "errexit"}),
    ],
)
def test_the_first_that_fails_ends_the_others(launcher, script, deed, code, environment):
    """Its exit code is the script's, and its log is shown; ranks that ended only because of it are not reported."""
    program = f"echo here is $RANK; if [ $RANK = 2 ]; then {deed}; fi; sleep 1000; exit 9"
    script.render("--devices", 4, "--", "sh", "-c", program)
    done = script.run(env=environment)
    assert done.returncode == code
    assert re.search(rf"rank 2 .*\b{code}\b", done.stderr)
    assert "here is 2" in done.stderr
    assert "here is 1" not in done.stderr
    assert launcher.processes() == []


@SIGNALS
@pytest.mark.parametrize("program", ["mkdir", "env"])
def test_a_signal_before_ranks_start(launcher, script, number, code, program):
    """It reaches all of the terminal's foreground; what a program of the script did not do is not blamed on anybody."""
    script.render("--devices", 2, "--", "sleep", 1000)
    environment = stub(launcher, program, f"kill -s {number.name[3:]} 0; exec sleep 1000")
    process = script.start(env=environment, start_new_session=True)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, "error" in stderr) == (code, False)
    assert not list(launcher.runs.glob("*/*/train.log"))


@SIGNALS
@pytest.mark.parametrize("known", [0, 2])
def test_a_signal_between_the_start_of_a_rank_and_its_entry(launcher, script, number, code, known):
    """The moment is one of bash's own debugger: before a command that notes the rank."""
    script.render("--devices", 4, "--", "sleep", 1000)
    signalled = f'[[ $BASH_COMMAND == _groups+=* && ${{#_groups[@]}} == {known} ]] && kill -s {number.name[3:]} "$$"'
    done = script.run(env=debugged(launcher, signalled))
    assert done.returncode == code
    assert f"ending {known + 1} ranks" in done.stderr
    assert launcher.processes() == []


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.02, 0.04, 0.08, 0.16])
def test_ctrl_c_while_ranks_start(launcher, script, wait_until, delay_s):
    script.render("--devices", 8, "--", "sleep", 1000)
    head, terminal = os.openpty()
    process = script.start(
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, preexec_fn=own_terminal
    )
    os.close(terminal)
    try:
        wait_until(launcher.runs.exists, "the run's directory")
        time.sleep(delay_s)
        os.write(head, b"\x03")
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(head)
    assert launcher.processes() == []


def own_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def debugged(launcher, command):
    """An environment in which the script's shell runs a command before each of its own."""
    hook = launcher.directory / "hook.sh"
    hook.write_text(f"set -T\ntrap '{command}' DEBUG\n")
    return {"BASH_ENV": str(hook)}


def stub(launcher, program, text):
    """An environment in which a program of the script is another one."""
    path = launcher.directory / "stubs" / program
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}{os.pathsep}{launcher.environment({})['PATH']}"}


@SIGNALS
def test_a_signal_ends_all(launcher, script, programs, number, code):
    """Ranks, and their children, before the script itself is gone."""
    script.render("--devices", 3, "--", "sh", "-c", "sleep 1000 & echo ready; sleep 1000")
    process = script.start()
    launcher.wait_ready(3)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert launcher.processes() == []


def test_who_does_not_go_is_killed_after_the_grace(launcher, script, programs, wait_until):
    script.render("--devices", 2, "--grace", 1, "--", sys.executable, programs / "stubborn.py", "ignore")
    process = script.start()
    launcher.wait_ready(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_until(lambda: not launcher.processes(), "the end of who was killed")


def test_a_second_interrupt_kills_at_once(launcher, script, programs):
    script.render("--devices", 2, "--grace", 3600, "--", sys.executable, programs / "stubborn.py", "ignore")
    process = script.start()
    launcher.wait_ready(2)
    process.send_signal(signal.SIGINT)
    assert "ending 2 ranks" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert launcher.processes() == []


def test_a_rank_whose_whole_group_is_killed(launcher, script, wait_until):
    """Nobody is left to tell of it, and it is noticed all the same."""
    script.render("--devices", 2, "--", "sh", "-c", 'echo "$RANK $$"; echo ready; sleep 1000')
    process = script.start()
    run = launcher.wait_ready(2)
    pid = int((run / "device1" / "train.log").read_text().split()[1])
    os.killpg(os.getpgid(pid), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert launcher.processes() == []


def test_ranks_go_on_when_nobody_reads_what_the_script_says(launcher, script):
    script.render("--devices", 2, "--", "sh", "-c", "sleep 0.5; echo done")
    process = script.start()
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert (launcher.latest / "device1" / "train.log").read_text() == "done\n"


def test_two_servers(launcher, script, table_of):
    """Each runs its own ranks, in one run's directory where they share a file system."""
    table = table_of({"h2": [2, 3], "h1": [0, 1]})
    script.render("--rank-table", table, "--name", "both", "--", sys.executable, "-c", DUMP)
    assert [script.run(str(index)).returncode for index in range(2)] == [0, 0]
    environments, _ = dumped(launcher, 4)
    wanted = ("LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "DEVICE_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    assert [[environment[name] for name in wanted] for environment in environments] == [
        ["0", "1", "2", "0", "h1", "29500", "4"],
        ["1", "1", "2", "1", "h1", "29500", "4"],
        ["0", "0", "2", "0", "h1", "29500", "4"],
        ["1", "0", "2", "1", "h1", "29500", "4"],
    ]
    assert {environment["TLAUNCH_RUN_DIR"] for environment in environments} == {str(launcher.runs / "both")}


def test_a_run_is_never_written_over(launcher, script, table_of):
    script.render("--rank-table", table_of({"h1": [0], "h2": [1]}), "--name", "both", "--", "true")
    assert script.run("1").returncode == 0
    done = script.run("1")
    assert done.returncode == 2
    assert "RUN_NAME" in done.stderr
    assert script.run("1", "other").returncode == 0


@pytest.mark.parametrize(
    "words", [(), ("",), ("2",), ("x",), ("0", "a/b"), ("0", ".."), ("0", "latest"), ("0", "latest~1")]
)
def test_a_server_that_is_not_there(launcher, script, table_of, words):
    """And a name that is none: an error in a line of its own, and nothing is made."""
    script.render("--rank-table", table_of({"h1": [0], "h2": [1]}), "--", "true")
    done = script.run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert not launcher.runs.exists()


def test_idle_devices(launcher, script, sample_tables):
    """Ranks get the table cut to them, as `tlaunch run` writes it."""
    arguments = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--dp", 2, "--allow-idle-devices"]
    arguments += ["--", sys.executable, "-c", DUMP]
    script.render(*arguments)
    assert script.run().returncode == 0
    environments, _ = dumped(launcher, 2)
    made = launcher.latest / "rank_table.json"
    assert {environment["RANK_TABLE_FILE"] for environment in environments} == {str(made.resolve())}
    text = made.read_text()
    assert launcher.run("run", *arguments).returncode == 0
    assert (launcher.latest / "rank_table.json").read_text() == text


def test_the_bundled_trainer(launcher, script):
    """Started by a run.sh it trains as it does under `tlaunch run`."""
    script.render("--devices", 2, "--mp", 2, "--set", "train.steps=2", "--set", "model.d_model=16")
    done = script.run()
    assert done.returncode == 0, done.stderr
    log = (launcher.latest / "device0" / "train.log").read_text()
    assert "layout: dp=1 mp=2 pp=1" in log
    assert "step: 2, loss is" in log
