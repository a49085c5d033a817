"""The run.sh of `tlaunch render bash`, run: what ranks get, and that no value is executed."""

import json
import re
import shlex
import sys

import pytest

DUMP = "import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open(f'dumped{os.environ[\"RANK\"]}', 'w'))"
# A shell keeps these for itself, whatever it starts.
OF_A_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "PS1"}
# What differs from run to run.
OF_A_RUN = {"TLAUNCH_RUN_DIR", "TLAUNCH_RUN_ID", "TORCHELASTIC_RUN_ID", "TLAUNCH_HEARTBEAT_FILE"}
# As other launchers leave them, and what looks as if they did.
LEFT = {
    "RANK": "7", "MASTER_ADDR": "elsewhere", "RANK_TABLE_FILE": "/nowhere", "PMIX_RANK": "3", "PET_RDZV_ENDPOINT": "x",
    "SLURM_NTASKS": "4", "OMPI_COMM_WORLD_FOO": "1", "TORCHELASTIC_RUN_ID": "x", "PMIX_MCA_gds": "hash",
}  # fmt: skip
ODD = [
    "a  b ", "it's \"x\"", "$(touch bad)", "`touch bad`", "; touch bad", "new\nline\n", "--help", "-", "*", "\\", "",
    "${IFS}", "!!", "é", "\t", "~", "&& touch bad #", "<(touch bad)",
]  # fmt: skip
NAMES = ["a\ntouch bad", "$(touch bad)", "`touch bad`", "a) touch bad ;;", "'", "-x", "a b"]


def dumped(launcher, ranks):
    found = [json.loads((launcher.directory / f"dumped{rank}").read_text()) for rank in range(ranks)]
    return [environment for environment, _ in found], [arguments for _, arguments in found]


@pytest.mark.parametrize("left", [LEFT, {**LEFT, "SLURM_PROCID": "2"}], ids=["left", "in a step"])
def test_a_rank_gets_what_run_gives_it(launcher, script, sample_tables, left):
    layout = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--mp", 2, "--pp", 2, "--micro-batches", 4]
    arguments = [*layout, "--name", "same", "--master-port", 29877, "--env", "X=a 'b'"]
    command = ["--", sys.executable, "-c", DUMP, "a b"]
    script.render(*arguments, *command)
    assert script.run(env=left).returncode == 0
    by_script, words = dumped(launcher, 4)
    assert launcher.run("run", *arguments, *command, env=left).returncode == 0
    by_run, words_by_run = dumped(launcher, 4)
    assert words == words_by_run
    for one, other in zip(by_script, by_run, strict=True):
        assert one.keys() - OF_A_SHELL == other.keys() - OF_A_SHELL
        compared = one.keys() - OF_A_SHELL - OF_A_RUN
        assert {name: one[name] for name in compared} == {name: other[name] for name in compared}
        assert one["TLAUNCH_HEARTBEAT_FILE"].startswith(one["TLAUNCH_RUN_DIR"] + "/device")
        assert one["TLAUNCH_RUN_ID"] in one["TLAUNCH_RUN_DIR"]


def test_the_script_replaces_nothing_of_the_environment(launcher, script):
    """No variable, whatever it calls its own: every word of it is tried that could be one; no function; no choice."""
    script.render("--devices", 1, "--env", "CHOSEN=1", "--env", "MY_TOKEN=x", "--", sys.executable, "-c", DUMP)
    text = script.path.read_text()
    variables = dict.fromkeys(re.findall(r"\b_?([a-z][a-z_]*)\b", text), "theirs")
    functions = re.findall(r"^_?([a-z_]+)\(\)", text, re.MULTILINE)
    assert {"server", "ranks", "status"} <= variables.keys()
    assert {"send", "give_up", "start_rank"} <= set(functions)
    chosen = {
        "OMP_NUM_THREADS": "3",
        "PYTHONUNBUFFERED": "",
        "GOMP_SPINCOUNT": "7",
    }  # as for `tlaunch run` when the script is run
    bodies = {f"BASH_FUNC_{name}%%": "() { echo theirs; }" for name in functions}
    assert script.run(env={**variables, **chosen, **bodies}).returncode == 0
    [environment], _ = dumped(launcher, 1)
    assert {name: environment.get(name) for name in variables | chosen} == variables | chosen
    assert [name for name in bodies if "echo theirs" not in environment[name]] == []


def test_values_arrive_as_they_are(launcher, script):
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


def test_names_of_servers_are_not_executed(launcher, script, table_of):
    for names in (NAMES, NAMES[::-1]):
        table = table_of({name: [rank] for rank, name in enumerate(names)})
        script.render("--rank-table", table, "--", sys.executable, "-c", DUMP)
        assert script.run("0", names[0].encode().hex()).returncode == 0
        assert json.loads((launcher.directory / "dumped0").read_text())[0]["MASTER_ADDR"] == names[0]
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize(("name", "is_absolute"), [("sub", False), ("-a $(touch bad)\n'b'", True)])
def test_ranks_start_in_the_working_directory(launcher, script, name, is_absolute):
    where = launcher.directory / name
    where.mkdir()
    script.render("--devices", 1, "--cwd", where if is_absolute else name, "--", sys.executable, "-c", DUMP)
    assert script.run().returncode == 0
    assert (where / "dumped0").exists()
    assert (where / "runs" / "latest" / "device0" / "train.log").exists()
    assert not list(launcher.directory.glob("**/bad"))


def test_its_files_say_what_those_of_run_say(launcher, script, sample_tables):
    chosen = {"PLAIN": "back\\slash\nand\r more", "EMPTY": "", "COMPANY": "a=b", "OMP_NUM_THREADS": "3", "WORDS": "a b"}
    secrets = {"HF_TOKEN": "s3cr3t", "PROXY": "http://me:s3cr3t@host", "db.password": "s3cr3t"}
    secrets["HEADER"] = "Authorization: Bearer s3cr3t"
    variables = [word for name, value in {**chosen, **secrets}.items() for word in ("--env", f"{name}={value}")]
    table = sample_tables / "rank_table_4pcs.json"
    arguments = ["--rank-table", table, "--mp", 2, "--dp", 1, "--allow-idle-devices", "--grace", 7, "--name", "a"]
    program = ["sh", "-c", "echo $HF_TOKEN", "--password=s3cr3t", "\"'$(x) \\ %s\n"]
    arguments += ["--master-port", 29877, *variables, "--", *program]
    script.render(*arguments)
    shell = {"MY_API_KEY": "s3cr3t", "OF_THE_SHELL": "x", "WORDS": "x"}
    assert launcher.ended(["bash", script.path], env=shell, umask=0o022).returncode == 0
    by_script = launcher.latest.resolve()
    assert launcher.run("run", *arguments).returncode == 0
    records, logs, tables = zip(*(files_of(run_dir) for run_dir in (by_script, launcher.latest)), strict=True)
    assert (by_script / "device0" / "train.log").read_text() == "s3cr3t\n"
    assert [(by_script / name).stat().st_mode & 0o777 for name in ("device0/env.log", "run.json")] == [0o600, 0o644]
    assert not [name for name in ("device0/env.log", "run.json") if "s3cr3t" in (by_script / name).read_text()]
    shown = dict(line.split("=", 1) for line in logs[0])
    assert len(shown) == len(logs[0])
    assert not shown.keys() & {*secrets, "MY_API_KEY", "OF_THE_SHELL", "PATH"}
    assert {*chosen, "RANK", "MASTER_PORT", "WORLD_SIZE", "TLAUNCH_RUN_DIR"} <= shown.keys()
    by_run = dict(line.split("=", 1) for line in logs[1])
    compared = shown.keys() - OF_A_RUN - {"RANK_TABLE_FILE"}
    assert {name: shown[name] for name in compared} == {name: by_run[name] for name in compared}
    assert shown["RANK_TABLE_FILE"] == str(by_script / "rank_table.json")
    assert tables[0] == tables[1]
    assert records[0].pop("engine") == "run.sh"
    assert is_part_of(*records)
    environment = records[0]["ranks"][0]["env"]
    assert (environment["COMPANY"], environment["HF_TOKEN"]) == ("a=b", "********")


def is_part_of(one, other):
    """Whether the other record says all that this one says."""
    if isinstance(one, dict):
        return one.keys() <= other.keys() and all(is_part_of(value, other[name]) for name, value in one.items())
    return one == other if not isinstance(one, list) else len(one) == len(other) and all(map(is_part_of, one, other))


def files_of(run_dir):
    log = (run_dir / "device0" / "env.log").read_text().splitlines()
    return json.loads((run_dir / "run.json").read_text()), log, (run_dir / "rank_table.json").read_text()


@pytest.mark.parametrize("environment", [{}, {"POSIXLY_CORRECT": "1"}], ids=["plain", "POSIX"])
def test_last_lines_cannot_act_on_a_terminal(launcher, script, environment):
    wrote = "\x1b[2Jred\x07 \u009b31m é\ttab\r\n"
    script.render("--devices", 1, "--", sys.executable, "-c", f"print({wrote!r}, flush=True); exit(3)")
    done = script.run(env=environment)
    assert "[2Jred 31m é\ttab\n" in done.stderr
    assert (launcher.latest / "device0" / "train.log").read_bytes().startswith(wrote.encode())


def test_output_and_order(launcher, script):
    launcher.latest.mkdir(parents=True)
    script.render("--devices", 3, "--name", "n", "--", "sh", "-c", "echo out $RANK; echo err >&2; cat")
    for _ in range(3):
        assert script.run().returncode == 0
    runs = list(launcher.runs.glob("2*"))
    assert (len(runs), list(launcher.latest.iterdir())) == (3, [])
    for run in runs:
        assert [(run / f"device{rank}" / "train.log").read_text() for rank in range(3)] == [
            f"out {rank}\nerr\n" for rank in range(3)
        ]


def test_two_servers(launcher, script, table_of):
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


def test_servers_and_names_that_cannot_be_are_refused(launcher, script, table_of):
    script.render("--rank-table", table_of({"h1": [0], "h2": [1]}), "--name", "both", "--", "true")
    for words in ((), ("",), ("2",), ("x",), ("0", "a/b"), ("0", ".."), ("0", "latest"), ("0", "latest~1")):
        done = script.run(*words)
        assert (done.returncode, done.stderr.startswith("error: "), launcher.runs.exists()) == (2, True, False), words
    assert script.run("1").returncode == 0
    done = script.run("1")
    assert (done.returncode, "RUN_NAME" in done.stderr) == (2, True)
    assert script.run("1", "other").returncode == 0


def test_the_bundled_trainer(launcher, script):
    options = ["--devices", 2, "--mp", 2, "--set", "train.steps=2", "--set", "model.d_model=16"]
    script.render(*options)
    [command] = re.findall(r"^_command=\((.*)\)$", script.path.read_text(), re.MULTILINE)
    shown = json.loads(launcher.call("run", "--dry-run", "--json", *options).stdout)
    assert [rank["argv"] for rank in shown["ranks"]] == [shlex.split(command)] * 2
    assert "train.steps=2" in command
