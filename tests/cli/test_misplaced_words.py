"""Values of options that are typed as COMMAND, and habits from other tools, are answered with the words to type."""

import os

import pytest

from launcher.cli.launch.external.rank_scripts import rank_script
from launcher.cli.launch.misplaced_words import misplaced
from launcher.cli.run_options import RunOptions

from .transcript import typed_lines

HABITS = """
translate --input test.de --beam-size 4 --lenpen 0.6; translate --model m --num_beams=4; translate --nbest 3; translate test.de; translate -i
evaluate --src test.de --ref test.en; evaluate --source test.de --target test.en; evaluate --hyp x; generate --beam 2; preprocess; finetune; ckpt average
run --src a --tgt b --lr 3; run --finetune x; run --continue; run --log_interval 5; run --servers h1,h2 --devices 4; run --device_num 4; run --search_mode x
run --strategies.matmul x; run --set parallel.mode=x; run --set batches=x; run --device_num 4 train.py; run --resume; rerun --resume --dry-run; run --stdin -- python
hccl_tools --device_num [0,4); python hccl_tools.py --device_num [0,8); merge_hccl a b; table generate --device_num 0-3; validate --rank_table_file t.json
logs -r 2; checkpoints; ckpt export --format hf x; translate x test.de; torchrun --nprocs_per_node 4 train.py; explain beam; explain embedding; explain perplexity; run --devices 4 train.py --lr 1; run -- train.py; bash run.sh 8
"""
RUN_SH = """export RANK_TABLE_FILE=t.json
for i in 0 1; do
  export DEVICE_ID=$i RANK_ID=$i
  python train.py --data $1 > log$i 2>&1 &
done
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("test.de", "test.en", "t.json", "pairs.tsv", "train.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def test_a_habit_from_another_tool_is_answered_with_the_words_to_type(launcher, snapshot):
    for name in ("test.de", "test.en", "train.py"):
        launcher.write(name)
    launcher.write("run.sh", RUN_SH)
    assert launcher.refused(2, *typed_lines(HABITS), ["translate", "Der Hund"]) == snapshot


@pytest.mark.parametrize(("command", "meant"), [
    ("test.de test.en", "--source test.de --target test.en"), ("t.json", "--rank-table t.json"),
    ("pairs.tsv", "--data pairs.tsv"), ("t.json -- python train.py", "--rank-table t.json -- python train.py"),
    ("train.steps=5", "--set train.steps=5"), ("lr=1 --seed 3", "--set train.learning_rate=1`, followed by `--seed 3"),
])  # fmt: skip
def test_an_option_is_missing_before_its_value(files, command, meant):
    assert misplaced(RunOptions(command=tuple(command.split()))).hint == f"use `{meant}`"


@pytest.mark.parametrize("setting", ["train.steps", "train.steps="])
@pytest.mark.parametrize("command", [("=", "300"), ("300",), ("=300",)])
def test_a_setting_in_several_words_is_one(setting, command):
    hint = misplaced(RunOptions(command=command, settings=(setting,))).hint
    assert hint == "write a setting without spaces: `--set train.steps=300`"


@pytest.mark.parametrize(
    "command",
    [
        "train.py test.de",
        "EPOCHS=3 train.py",
        "epochs=3 train.py",
        "nosuch=3",
        "test.de",
        "test.de a b",
        "true test.de",
        "-x",
        "",
    ],
)
def test_other_commands_may_be_programs(files, command):
    assert misplaced(RunOptions(command=tuple(command.split()))) is None


def test_a_program_on_the_ranks_own_path_is_no_setting(files):
    assert misplaced(RunOptions(command=("lr=1",), env=("PATH=/opt",))) is None


def test_a_pipe_is_not_read_as_a_script(tmp_path):
    pipe = tmp_path / "run.sh"
    os.mkfifo(pipe)
    assert rank_script(["bash", str(pipe)]) is None
