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
    """Render and read; the schemas have nothing to say, for which unknown fields are errors, too."""

    def render(*arguments):
        done = launcher.call("render", "kubernetes", "--image", "registry/me/train:1", *arguments, code=0)
        found = list(yaml.safe_load_all(done.stdout))
        for document in found:
            templates = [document]
            if document["kind"] == "MPIJob":  # is none of Kubernetes' own kinds, but its pods are
                pods = document["spec"]["mpiReplicaSpecs"].values()
                templates = [{"apiVersion": "v1", "kind": "PodTemplate", "template": pod["template"]} for pod in pods]
            for template in templates:
                kubernetes_validate.validate(template, "1.32", strict=True)
        return found

    return render


def test_the_schema_would_have_something_to_say(documents):
    *_, job = documents("--devices", 1, "--", "My_Prog.v2", "x")
    assert job["metadata"]["name"] == "my-prog-v2"
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["true"]
    with pytest.raises(kubernetes_validate.ValidationError, match="comand"):
        kubernetes_validate.validate(job, "1.32", strict=True)


JOB = """
--rank-table table.json --name train --resource nvidia.com/gpu --env-from-secret HUB_TOKEN=hub.io:my_key
--pvc 'data:/da ta' --env 'A_TOKEN=a b'
"""


def test_an_indexed_job(documents, table_of, snapshot):
    table = table_of({"h2": [2, 3, 4], "h1": [0, 1]})
    config, *others = documents(*shlex.split(JOB), "--grace", "10.5", "--", "python", "x.py")
    script = config["data"].pop("run.sh")
    assert config["data"].pop("rank_table.json") == table.read_text()
    assert "master_addr=train-1.train\n" in script
    assert "RANK_TABLE_FILE=/etc/tlaunch/rank_table.json\n" in script
    assert yaml.safe_dump_all([config, *others]) == snapshot


def test_an_mpi_job(launcher, documents, table_of, snapshot):
    table_of({"h2": [2, 3], "h1": [0, 1]})
    command = [*shlex.split(JOB), "--flavor", "mpi", "--cwd", "/my work", "--", "./x"]
    shown = launcher.call("render", "kubernetes", "--image", "x", *command).stdout
    assert "  mpirun.sh: |\n    #!/usr/bin/env bash\n" in shown  # people can read it
    config, job = documents(*command)
    changed = yaml.safe_load(config["data"]["rank_table.json"])
    ranks = {
        server["server_id"]: [device["rank_id"] for device in server["device"]] for server in changed["server_list"]
    }
    assert ranks == {"train-worker-0.train": ["0", "1"], "train-worker-1.train": ["2", "3"]}
    script = config["data"]["mpirun.sh"]
    assert '"${_handed_on[@]}" -n 4 \\\n    tlaunch exec \\\n' in script
    found = [line.strip() for line in script.splitlines() if re.search("my work|_TOKEN|--runs-dir", line)]
    assert found == snapshot(name="script")
    assert script.endswith("-- ./x\n")
    assert yaml.safe_dump(job) == snapshot(name="job")


def test_what_an_mpi_job_cannot_express(launcher, table_of):
    for servers in ({"h1": [0, 1], "h2": [2]}, {"h1": [0, 2], "h2": [1, 3]}):  # unequal, in turns
        arguments = ["--image", "x", "--flavor", "mpi", "--rank-table", table_of(servers)]
        assert launcher.call("render", "kubernetes", *arguments, "--", "true", code=3).stdout == ""


def test_values_arrive_as_they_are(launcher, documents):
    variables = [word for number, value in enumerate(ODD) for word in ("--env", f"ODD{number}={value}")]
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], [os.environ[f'ODD{n}'] for n in range(13)]]))"
    config, _, job = documents("--devices", 1, *variables, "--", sys.executable, "-c", show, *ODD)
    script = launcher.write("run.sh", config["data"]["run.sh"])
    done = launcher.ended(["bash", script, "0", "x"])
    assert yaml.safe_load(done.stdout.split("\n", 1)[1]) == [ODD, ODD]
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [word for word in command if "$" in word] == command[2:]


def test_the_script_as_two_pods_run_it(launcher, documents, table_of):
    command = ["sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT; exit $RANK"]
    config, *_ = documents("--rank-table", table_of({"h1": [0], "h2": [1, 2]}), "--name", "t", "--", *command)
    script = launcher.write("run.sh", config["data"]["run.sh"])
    pods = []
    for index in range(2):
        pod = launcher.directory / f"pod{index}"
        pod.mkdir()
        pods.append(launcher.ended(["bash", "-c", f"cd pod{index}; exec bash {script} {index} t-uid"]))
    assert [pod.stdout.split("\n")[1:2] for pod in pods] == [["0 of 3 at t-0.t:29500"], ["1 of 3 at t-0.t:29500"]]
    assert pods[0].returncode == 0
    assert pods[1].returncode in {1, 2}
    assert (launcher.directory / "pod1" / "runs" / "t-uid" / "device2" / "train.log").exists()


@pytest.mark.parametrize(("options", "runs"), [
    (["--pvc=team.data"], "/mnt/team.data/runs"), (["--pvc=team.data:/data"], "/data/runs"),
    (["--pvc=team.data:/data", "--runs-dir=mine"], "/data/mine"),
    (["--pvc=team.data:/data", "--runs-dir=/elsewhere"], "/elsewhere"),
    (["--pvc=team.data:/data", "--cwd=/work"], "/data/runs"),
    (["--pvc=team.data:/o'd $(d) \"é"], "/o'd $(d) \"é/runs"),
])  # fmt: skip
def test_runs_are_on_a_claimed_volume(launcher, table_of, options, runs):
    table = table_of({"a": [0], "b": [1]})
    for flavor in ("job", "mpi"):
        wishes = ["--image", "x", "--flavor", flavor, *options, "--rank-table", table]
        shown = launcher.call("render", "kubernetes", *wishes, "--", "true", code=0).stdout
        [written] = re.findall(r"(?:^ *_runs_dir=|--runs-dir )(.*?)(?: \\)?$", shown, re.MULTILINE)
        assert shlex.split(written) == [runs]
