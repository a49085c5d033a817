"""What `tlaunch render kubernetes` writes, as a YAML reader and the schemas see it, and its script, run as pods would."""

import re
import shlex
import sys

import kubernetes_validate
import pytest
import yaml

ODD = ["a b", 'it\'s "x"', "$(POD_NAME)", "$$(x)", "new\nline\n", "--help", "\\", "", "%", "- x: 1", "# y", "\x1b", "é"]


@pytest.fixture(name="documents")
def _documents(launcher):
    """Render and read."""

    def render(*arguments):
        done = launcher.call("render", "kubernetes", "--image", "registry/me/train:1", *arguments)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return render


JOB = "render kubernetes --image registry/me/train:1 --rank-table table.json --name train"


def test_an_indexed_job(launcher, table_of, snapshot):
    """A pod per server, found by name through a headless Service; the table is taken as it is."""
    table = table_of({"h2": [2, 3, 4], "h1": [0, 1]})
    done = launcher.call(*JOB.split(), "--grace", "10.5", "--resource", "nvidia.com/gpu", "--", "python", "x.py")
    config, *others = yaml.safe_load_all(done.stdout)
    script = config["data"].pop("run.sh")
    assert config["data"].pop("rank_table.json") == table.read_text()
    assert "master_addr=train-1.train\n" in script
    assert "RANK_TABLE_FILE=/etc/tlaunch/rank_table.json\n" in script
    assert yaml.safe_dump_all([config, *others]) == snapshot


def test_an_mpi_job(launcher, table_of, snapshot):
    """Workers are the servers of the table, in the order of their ranks, by the names that the operator gives them."""
    table_of({"h2": [2, 3], "h1": [0, 1]})
    options = ["--flavor", "mpi", "--resource", "a/b", "--cwd", "/my work", "--env", "A_KEY=a b"]
    done = launcher.call(*JOB.split(), *options, "--", "./x")
    assert "  mpirun.sh: |\n    #!/usr/bin/env bash\n" in done.stdout  # people can read it
    config, job = yaml.safe_load_all(done.stdout)
    changed = yaml.safe_load(config["data"]["rank_table.json"])
    ranks = {
        server["server_id"]: [device["rank_id"] for device in server["device"]] for server in changed["server_list"]
    }
    assert ranks == {"train-worker-0.train": ["0", "1"], "train-worker-1.train": ["2", "3"]}
    script = config["data"]["mpirun.sh"]
    assert '"${_handed_on[@]}" -n 4 \\\n    tlaunch exec \\\n' in script
    assert [line.strip() for line in script.splitlines() if re.search("my work|A_KEY", line)] == snapshot(name="script")
    assert script.endswith("-- ./x\n")
    assert yaml.safe_dump(job) == snapshot(name="job")


@pytest.mark.parametrize("servers", [{"h1": [0, 1], "h2": [2]}, {"h1": [0, 2], "h2": [1, 3]}], ids=["unequal", "turns"])
def test_what_an_mpi_job_cannot_express(launcher, table_of, servers):
    arguments = ["--image", "x", "--flavor", "mpi", "--rank-table", table_of(servers)]
    done = launcher.call("render", "kubernetes", *arguments, "--", "true")
    assert (done.returncode, done.stdout) == (3, "")


def test_a_name_that_follows_from_the_command_is_made_to_fit(documents):
    """One that was given is refused where it does not fit, see test_render."""
    _, _, job = documents("--devices", 1, "--", "My_Prog.v2", "x")
    assert job["metadata"]["name"] == "my-prog-v2"


def test_values_arrive_as_they_are(launcher, documents):
    """Through YAML and a shell; Kubernetes sees no $(NAME) in what it would put variables into."""
    variables = [word for number, value in enumerate(ODD) for word in ("--env", f"ODD{number}={value}")]
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], [os.environ[f'ODD{n}'] for n in range(13)]]))"
    config, _, job = documents("--devices", 1, *variables, "--", sys.executable, "-c", show, *ODD)
    script = launcher.directory / "run.sh"
    script.write_text(config["data"]["run.sh"])
    done = launcher.ended(["bash", script, "0", "x"])
    assert yaml.safe_load(done.stdout.split("\n", 1)[1]) == [ODD, ODD]
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [word for word in command if "$" in word] == command[2:]


def test_the_script_as_two_pods_run_it(launcher, documents, table_of):
    """Each shows its first rank's output, as `kubectl logs` would."""
    command = ["sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT; exit $RANK"]
    config, *_ = documents("--rank-table", table_of({"h1": [0], "h2": [1, 2]}), "--name", "t", "--", *command)
    script = launcher.directory / "run.sh"
    script.write_text(config["data"]["run.sh"])
    pods = []
    for index in range(2):
        pod = launcher.directory / f"pod{index}"
        pod.mkdir()
        pods.append(launcher.ended(["bash", "-c", f"cd pod{index}; exec bash {script} {index} t-uid"]))
    assert [pod.stdout.split("\n")[1:2] for pod in pods] == [["0 of 3 at t-0.t:29500"], ["1 of 3 at t-0.t:29500"]]
    assert pods[0].returncode == 0
    assert pods[1].returncode in {1, 2}
    assert (launcher.directory / "pod1" / "runs" / "t-uid" / "device2" / "train.log").exists()


CLAIM = {"name": "runs", "persistentVolumeClaim": {"claimName": "team.data"}}


@pytest.mark.parametrize(
    ("options", "mount", "runs"),
    [
        (["--pvc=team.data"], "/mnt/team.data", "/mnt/team.data/runs"), (["--pvc=team.data:/data"], "/data", "/data/runs"),
        (["--pvc=team.data:/data", "--runs-dir=mine"], "/data", "/data/mine"),
        (["--pvc=team.data:/data", "--runs-dir=/elsewhere"], "/data", "/elsewhere"),
        (["--pvc=team.data:/data", "--cwd=/work"], "/data", "/data/runs"),
        (["--pvc=team.data:/o'd $(d) \"é"], "/o'd $(d) \"é", "/o'd $(d) \"é/runs"),
    ],
)  # fmt: skip
def test_runs_are_on_a_claimed_volume(documents, table_of, options, mount, runs):
    """Which outlives the pods; every container that writes or reads runs has it."""
    for flavor in ("job", "mpi"):
        config, *_, job = documents(
            "--flavor", flavor, *options, "--rank-table", table_of({"a": [0], "b": [1]}), "--", "true"
        )
        script, pods = parts_of(config, job)
        [written] = re.findall(r"(?:^_runs_dir=|--runs-dir )(.*?)(?: \\)?$", script, re.MULTILINE)
        assert shlex.split(written) == [runs]
        for pod in pods:
            assert CLAIM in pod["spec"]["volumes"]
            assert {"name": "runs", "mountPath": mount} in pod["spec"]["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("flavor", ["job", "mpi"])
def test_a_variable_of_a_secret_is_in_no_file(documents, table_of, flavor):
    """Its container takes it from the Secret; of an MPIJob the launcher has it, and mpirun hands it on by its name."""
    options = ["--flavor", flavor, "--rank-table", table_of({"a": [0], "b": [1]})]
    config, *_, job = documents(*options, "--env-from-secret", "HUB_TOKEN=hub.io:my_key", "--", "true")
    script, pods = parts_of(config, job)
    wanted = {"name": "HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub.io", "key": "my_key"}}}
    assert wanted in pods[0]["spec"]["containers"][0]["env"]
    assert ("-x HUB_TOKEN " in script) == (flavor == "mpi")


def test_who_puts_a_secret_into_the_file_is_told_of_a_better_place(launcher):
    done = launcher.call("render", "kubernetes", "--image", "x", "--env", "A_TOKEN=x", "--", "true")
    assert "A_TOKEN; --env-from-secret " in done.stderr


def parts_of(config, job):
    """The script, and the templates of pods, the first one's container runs the script."""
    [script] = [text for name, text in config["data"].items() if name.endswith(".sh")]
    if job["kind"] == "MPIJob":
        return script, [job["spec"]["mpiReplicaSpecs"][name]["template"] for name in ("Launcher", "Worker")]
    return script, [job["spec"]["template"]]


@pytest.mark.parametrize("flavor", ["job", "mpi"])
def test_the_schema_has_nothing_to_say(documents, table_of, flavor):
    """Unknown fields are errors too. An MPIJob is none of Kubernetes' own kinds, but its pods are."""
    table = table_of({"h2": [2, 3], "h1": [0, 1]})
    options = ["--flavor", flavor, "--rank-table", table, "--resource", "nvidia.com/gpu", "--env", "A_TOKEN=x"]
    options += ["--pvc", "data:/da ta", "--env-from-secret", "HUB_TOKEN=hub:token"]
    checked = 0
    for document in documents(*options, "--", "true"):
        templates = [document]
        if document["kind"] == "MPIJob":
            pods = document["spec"]["mpiReplicaSpecs"].values()
            templates = [{"apiVersion": "v1", "kind": "PodTemplate", "template": pod["template"]} for pod in pods]
        for template in templates:
            kubernetes_validate.validate(template, "1.32", strict=True)
            checked += 1
    assert checked >= 3


def test_the_schema_would_have_something_to_say(documents):
    """A field that Kubernetes does not know is refused, deep in a pod."""
    *_, job = documents("--devices", 1, "--", "true")
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["true"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(job, "1.32", strict=True)
