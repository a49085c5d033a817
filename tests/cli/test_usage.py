"""What click refuses is said in the voice of every other error, with a hint that can be followed."""

import os
import shlex

import pytest

from .transcript import typed_lines

WRONG = """
run --device 4; run --rank-tabel t.json; run --quiet --verbose; top --quiet; run --no-config; run --nproc-per-node 4; run --nproc_per_node=4; run -npx 4
run --worker_num 8 --local_worker_num=8 train.py; run --log_dir d; run --bind_core=True; run --join=True; run --nnodes=2
run --standalone; run -m train; stop -v; run --max_restarts=3; run --master_port=8118; run -x A=1; ps -v; ps --nnodes; doctor -v; run --tee 3; run --rank_table_file t.json
stop --all; logs --tail x; stop --tail 3; --foo; runn; table gen; data sampel; zounds; train.py; table train.py
kill; rm; ls; list; attach; run --gpus 4; run --hostfile h; run --nnodes=1:4; run --oversubscribe; run --rdzv-id 1; run -N 2; run --map-by slot
run --devices; run --detach=3; run --devices four; run --devices 0; run --devices 100000
run --max-restarts 10000000; run --micro-batches x; run --hang-timeout 10x; run --join-timeout 8d; run --grace 1h30
run --hang-timeout nan; run --grace nan; run --grace -1; run --grace inf; run --engine slrum
top --interval nan; stop --timeout nan; logs -n x; render; render csh; exec --; exec; data preprocess
status a b; doctor --devices 2 train.py; doctor --dp 2
status -w; logs -t; stop -9; why --color; resume; run -n auto; run -np2; msrun; run --cluster_time_out=9; run --rank-table-file t; run --epochs 3; rerun --epochs 3; stop --epochs 3
run --lr 0.1 --batch-size=32 -n 4 --tp 2; run --pipeline_stage 2 --micro_batch_num 4 --src_len 10 --zounds; run --bf16; run --lr 1 -- train.py; run --recipe quickstart --n_layer 2; run --recipe=quickstart --n_layer 2; run --recipe nosuch --n_layer 2
train --data p.tsv; resume; resume x --set train.steps=9; continue --set train.steps=9; run --set lr=0.1; run --timeout 0; run --timeout 1x; run --config tutoral.toml
rm foo; rm --keep 2; ls foo; kill foo; train --nosuch; train --lr 0.1; help nosuch; version run; logs 2; logs rank 2; explain 2; prune --older-than 30
stop ''; status ''; logs ''; validate ''; table show ''; run --dry-run --rank-table ''
"""
WHOLE_LINES = """
run --worker_num 8 --local_worker_num 4 --master_addr 10.0.0.1 --master_port 8118 --node_rank 0 --log_dir logs --join True --cluster_time_out 300 train.py --epochs 2
run --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr h1 train.py --lr 1; explain --nproc-per-node 2 -m train; run --nnodes 2 --nproc-per-node 8
run -np 8 --allow-run-as-root python train.py; run -mca btl self -np 2 --hostfile hosts ./a.out; run --nosuch 1 --nproc-per-node 2 train.py
torchrun --nproc-per-node 2 train.py; msrun --worker_num 2 train.py; mpirun -n 2 ./a.out; mpirun; --no-config run --nproc-per-node 2 train.py
mpirun -np 4 -host h1,h2 python a.py; mpirun -N 4 --host h1,h2 python a.py; msrun --worker_num 2; horovodrun -np 2 a.py; exec -v
run -n 2 --timeout 10 --tag-output ./a.out; -n 2 --timeout 10 true; run -n 2 -x A=1 -- ./a.out; run -n 2 --bind-to core ./a.out; run -np 2 -mca btl self ./a.out; mpirun -n 2 --timeout 9 ./a.out
deepspeed --include localhost:0,1 train.py; accelerate launch --num_processes 2 --mixed_precision bf16 train.py; accelerate launch --config_file c.yaml train.py; torchrun --nosuch x --nproc train.py; deepspeed --ssh_port 22 --num_gpus 2 train.py
train.py --lr 1; python -m train; --devices 2 python train.py; -n 2 --tee 3 train.py; --quiet logs; accelerate launch --multi_gpu --nosuch --num_processes 2 train.py
--no-config --devices 2 python train.py; python3.13t train.py; rerun -np 2 --tee 3 -- --lr 1; rerun x -np 2 --tee 3; --devices 2 run python train.py; bash run.sh; -np 2 torchrun --nproc-per-node 2 t.py; run --nproc-per-node 2 -- --lr 1
"""
NOTHING_AFTER_DASHES = """
run --devices 2 --; run --; run --detach --; run --dry-run --; explain --rank 1 --devices 2 --
render bash --devices 2 --; doctor --
"""
SOMETHING_AFTER_DASHES = """
run --dry-run; run --no-dry-run --dry-run -- echo --dry-run; run --devices 1 --dry-run -- echo --; explain -- true
"""


def test_wrong_usage_is_an_error_with_a_hint(launcher, snapshot):
    launcher.write("run.json", "{}")
    told = launcher.refused(2, *typed_lines(WRONG), [r"a\b"], ["a\nb"], ["data", "a\tb"])
    assert told.count("! error: ") == len(typed_lines(WRONG)) + 3
    assert told == snapshot


def test_a_whole_line_of_another_launcher_is_answered_by_one_of_tlaunch(launcher, snapshot):
    told = launcher.refused(2, *typed_lines(WHOLE_LINES))
    assert told == snapshot


def test_the_quoted_lines_work(launcher):
    launcher.write("my train.py")
    typed = ["run", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--log-dir", "my runs"]
    told = launcher.call(*typed, "my train.py", "a b", code=2).stderr
    make, run = (shlex.split(line)[1:] for line in told.splitlines()[1:3])
    assert make.pop() == "&&"
    assert run[-6:] == ["--runs-dir", "my runs", "--", "python", "my train.py", "a b"]
    launcher.call(*(word.replace("HOST2", "127.0.0.2") for word in make), code=0)
    launcher.call(*run[:1], "--dry-run", *run[1:], code=0)


def test_a_program_with_its_directory_lacks_the_word_run(launcher):
    launcher.write("train.sh", "#!/bin/sh\n").chmod(0o755)
    launcher.write("table.json")
    assert "tlaunch run --devices N -- ./train.sh --lr 1\n" in launcher.call("./train.sh", "--lr", "1", code=2).stderr
    for name in ("./table.json", "./", "/" * 300 + "x" * 300):
        assert "`run` is missing" not in launcher.call(name, code=2).stderr


@pytest.mark.parametrize(("typed", "same"), [
    ("help", "--help"), ("help run", "run --help"), ("help table fix", "table fix --help"), ("version", "--version"),
    ("-V", "--version"), ("ps -a", "ps --all"),
])  # fmt: skip
def test_habits_of_other_tools_work(launcher, typed, same):
    one, other = (launcher.call(*words.split(), code=0) for words in (typed, same))
    assert (one.stdout, one.stderr) == (other.stdout, other.stderr)


def test_nothing_after_two_dashes_starts_no_demo(launcher, snapshot):
    """A variable of a script that is empty must not train the bundled model; no dashes at all are fine."""
    assert launcher.refused(2, *typed_lines(NOTHING_AFTER_DASHES)) == snapshot
    for typed in typed_lines(SOMETHING_AFTER_DASHES):
        assert launcher.call(*typed.split()).returncode == 0


def test_a_dry_run_after_command_is_refused(launcher, snapshot):
    assert launcher.refused(2, "run -n 2 -- echo --dry-run", "run -n 2 echo a --dry-run b") == snapshot
    launcher.run("run", "-n", 1, "--no-dry-run", "--", "echo", "--dry-run", code=0)
    launcher.call("rerun", "--", "--dry-run", code=2)
    line = launcher.call("rerun", "--dry-run", code=0).stdout
    assert line == "tlaunch run --devices=1 --no-dry-run -- echo --dry-run\n"
    launcher.run("rerun", code=0)
    launcher.run(*shlex.split(line)[1:], code=0)
    assert (launcher.latest / "device0" / "train.log").read_text() == "--dry-run\n"
    launcher.run("run", "-n", 1, "--", "sh", "-c", "echo $2", "x", "--", "--dry-run", code=0)


def test_a_file_that_may_not_be_read_is_told_as_its_reader_would(launcher, monkeypatch, snapshot):
    launcher.write("table.json")
    monkeypatch.setattr(os, "access", lambda *_arguments, **_options: False)  # root may read everything
    options = ("--rank-table", "--data", "--runs-dir")
    assert launcher.refused(2, *(f"run {option} table.json" for option in options)) == snapshot


@pytest.mark.parametrize("group", [[], ["table"], ["data"]])
def test_a_group_without_a_command_shows_its_help(group, launcher):
    done = launcher.call(*group)
    assert "Usage: tlaunch " in done.stdout + done.stderr
    assert "error: " not in done.stderr


SPLIT = {
    "run --hang-timeout 10 m -- python train.py": "--hang-timeout 10m", "run --devices 2 --grace=1.5 sec": "--grace=1.5s",
    "logs --since 10 m": "--since 10m", "wait --timeout 2 hours": "--timeout 2h", "top --interval 2 s": "--interval 2s",
    "prune --older-than 3 days": "--older-than 3d",
}  # fmt: skip


@pytest.mark.parametrize(("typed", "meant"), SPLIT.items(), ids=SPLIT)
def test_a_duration_in_two_words_is_told_from_a_program(launcher, typed, meant):
    assert f"hint: write the duration as one word: {meant}\n" in launcher.call(*typed.split(), code=2).stderr


def test_a_word_like_a_unit_is_no_duration_elsewhere(launcher):
    for typed in ("run --devices 2 m", "run --hang-timeout 10 -- m", "run --hang-timeout 10 -- nosuch --grace 10 m"):
        assert "one word" not in launcher.call(*typed.split()).stderr
    launcher.write("tools/m", "#!/bin/sh\n").chmod(0o755)
    options = ("--env", f"PATH={launcher.directory}/tools", "--dry-run", "--hang-timeout", "10")
    assert launcher.call("run", *options, "m", code=0)
