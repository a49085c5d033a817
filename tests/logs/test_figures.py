"""Find training figures (step, loss, speed) in printed lines, but only where they are certain."""

import math
import time

import pytest

from launcher.core.errors import UsageError
from launcher.logs import figures
from launcher.logs.figures import Figures, figures_in, figures_of, progress_regex

FOUND = [
    ("step 12 loss 1.23", Figures(12, loss=1.23)),
    ("epoch: 3 step: 100, loss is 1.87", Figures(100, epoch=3, loss=1.87)),  # MindSpore
    (
        "epoch: 3 step: 8, total step: 120, loss is 1.87, 90 tokens/s, gradient norm 0.4",
        Figures(8, None, 3, 1.87, 90),
    ),  # ours
    ("Epoch 3 | Step 12/300 | loss=0.3", Figures(12, 300, 3, 0.3)),
    ("Epoch [3/10], Step [100/600], Loss: 0.2345", Figures(100, 600, 3, 0.2345)),
    ("iter 100: loss 2.1, time 20ms", Figures(100, loss=2.1)),  # nanoGPT
    ("step 250: train loss 2.1, val loss 2.3", Figures(250, loss=2.1)),
    (
        "step 00012/21400 (0.06%) | loss: 8.9 | dt: 100ms | tok/sec: 500,000",
        Figures(12, 21400, loss=8.9, tokens_per_s=5e5),
    ),
    ("Epoch: [0][  10/5005]\tTime  0.5 ( 0.6)\tLoss 6.9e+00 (7.0e+00)", Figures(10, 5005, 0, 6.9)),  # ImageNet
    ("Epoch(train) [1][100/7330] lr: 1e-4 eta: 1:02:03 time: 0.5 loss: 1.2", Figures(100, 7330, 1, 1.2)),  # mmengine
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", Figures(640, 60000, 1, 2.3, counts_samples=True)),  # MNIST
    ("loss: 2.302388  [   64/60000]", Figures(64, 60000, loss=2.302388, counts_samples=True)),  # torch's quickstart
    ("[1,  2000] loss: 2.194", Figures(2000, epoch=1, loss=2.194)),  # torch's CIFAR-10
    ("Epoch: [0][ 10/5005] Time 0.3 (0.8) Loss 6.9e+00 (7.0e+00) Acc@1 0.00 (0.10)", Figures(10, 5005, 0, 6.9)),
    (
        "| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 12.3 | loss  8.21 | ppl  3600",
        Figures(200, 2928, 1, 8.21),
    ),
    ("INFO - epoch 001:     10 / 1200 loss=12.3, ppl=5000, wps=1200", Figures(10, 1200, 1, 12.3)),  # fairseq
    ("{'loss': '2.1', 'learning_rate': '4.9e-05', 'epoch': '0.1'}", Figures(epoch=0.1, loss=2.1)),  # transformers 5
    (
        "Epoch 1:  12%|\u2588  | 12/100 [00:01<00:09,  9.50it/s, v_num=0, train_loss=2.310]",
        Figures(12, 100, 1, 2.31, steps_per_s=9.5),
    ),  # Lightning
    (
        " [2024-01-01] iteration 100/ 5000 | elapsed time per iteration (ms): 12.5 | lm loss: 7.3E+00 | loss scale: 1.0 |",
        Figures(100, 5000, loss=7.3),
    ),  # Megatron
    ("[INFO] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[0.9]", Figures(10)),  # DeepSpeed
    ("\x1b[31mstep: 10\x1b[0m  \x1b[32mloss:  7.1\x1b[39m  memory: 1.2GiB(3%)  tps: 12,345", Figures(10, loss=7.1)),
    ('{"step": 12, "loss": 1.2}', Figures(12, loss=1.2)),
    ("{'loss': 0.4, 'learning_rate': 4e-05, 'epoch': 0.3}", Figures(epoch=0.3, loss=0.4)),  # transformers
    ("2024-01-01 12:00:00,123 INFO step 12 loss 1.3 12.3k tokens/s", Figures(12, loss=1.3, tokens_per_s=12300)),
    # A number after the unit wins over one before it that has a name of its own.
    ("step 5/60 loss 4.09 tokens/s 1000", Figures(5, 60, loss=4.09, tokens_per_s=1000)),
    ("step 5 loss=2.1 tok/s 3.4k", Figures(5, loss=2.1, tokens_per_s=3400)),
    ("step 5 lr 0.001 tokens/sec 2000", Figures(5, tokens_per_s=2000)),
    ("step 5 loss 4.09 900 tokens/s=1000", Figures(5, loss=4.09, tokens_per_s=1000)),
    ("step 5 loss 4.09 grad_norm 1.5 tokens per second 1000 mfu 0.3", Figures(5, loss=4.09, tokens_per_s=1000)),
    ("iter 5 loss 4.09 it/s 20", Figures(5, loss=4.09, steps_per_s=20)),
    ("step 5 loss 4.09 s/it 0.5 tokens/s 1000", Figures(5, loss=4.09, tokens_per_s=1000, steps_per_s=2)),
    ("step 5 loss 4.09 31 ms/step", Figures(5, loss=4.09)),
    ("step 5 loss 4.09 5 ms/step 31 tokens/s 900", Figures(5, loss=4.09, tokens_per_s=900)),
    ("step 5 loss 4.09 samples/s 30 img/sec 12", Figures(5, loss=4.09)),
    ("step 5 loss 4.09 tokens/s n/a", Figures(5, loss=4.09)),
    ("step 5 tokens/s 1000 loss 4.09 steps/s 3", Figures(5, loss=4.09, tokens_per_s=1000, steps_per_s=3)),
    ("step 5 loss 4.09 speed 900 tokens/s 12 GB", Figures(5, loss=4.09, tokens_per_s=900)),
    ("step 5 loss 4.09 900 tokens/s 3 steps/s", Figures(5, loss=4.09, tokens_per_s=900, steps_per_s=3)),
    ("step 7, loss 1,234.5, 3 steps/s", Figures(7, loss=1234.5, steps_per_s=3)),
    ("step 12/300 loss=tensor(2.3, device='cuda:0')", Figures(12, 300, loss=2.3)),
    ("/home/me/test/train.py:12 step 3 loss 1.0", Figures(3, loss=1.0)),
    ("train:  8%|\u258a   | 24/300 [00:02<00:27, 10.1it/s]", Figures(24, 300, steps_per_s=10.1)),
    (" 8%|\u258a   | 24/300 [00:48<09:27, 2s/it, loss=1.4]", Figures(24, 300, loss=1.4, steps_per_s=0.5)),
    ("Epoch 2: 50%|\u2588\u2588  | 5/10 [00:00<00:00, 9it/s, train_loss=1.2]", Figures(5, 10, 2, 1.2, steps_per_s=9)),
    (" 37%|\u2588\u2588\u258c  | 37/100 [00:03<00:06,  9.98it/s]", Figures(37, 100, steps_per_s=9.98, is_bare=True)),
    ("37%|###7    | 37/1,000 [1:00:03<2:00:06, 2.00s/it, acc=0.3]", Figures(37, 1000, steps_per_s=0.5, is_bare=True)),
    ("Epochs:  10%|\u2588 | 1/10 [00:00<00:00, 3.1it/s]", Figures(epoch=1)),
]
NOTHING = [
    "", "loss 1.2", "step 3: downloading data", "Step 2/5 : RUN pip install", "[1/3] step", "step by step",
    "total steps: 1000, lr 1e-4, epochs: 3", "warmup steps: 100, lr 3e-4", "max_steps=1000 lr=0.1", "num steps: 5, loss 1",
    "batch size 32 loss 2", "batch 32, loss 2", "Train epoch time: 1234 ms, per step time: 5.2 ms", "step 5 ms loss 2",
    "step 5.2 loss 2", "step 5% loss 2", "checkpoints/step-500 loss 1", "step 100 val_loss 2.3", "[eval] step 3/10 loss 2.1",
    "validation: epoch 1 step 100 loss 2.0", "Epoch(val) [1][100/7330] loss: 1.2", "{'eval_loss': 0.4, 'epoch': 1.0}",
    "step 12 aux loss 0.1", "step 12 aux_loss 0.1", "best loss 1.2 at step 100", "epochs: 3, loss: mse",
    "step 123456789012345678901234567890 loss 1", " 8%|\u258a   | 24/300 [00:02<00:27, 10.1B/s]",
    " 8%|\u258a   | 24/300 [00:02<00:27, 10.1it/s]\x1b[A", " 0%|    | 0/300 [00:00<?, ?it/s]", " 8%|\u258a   | 24/300 [00:02<00:27, 10.1 files/s]",
    "Downloading:  8%|\u258a   | 24/300 [00:02<00:27, 10.1it/s]", " 98%|\u2588   | 9912420/9912422 [00:01<00:00, 5213333.33it/s]",
    " 37%|\u2588   | 37.0M/100M [00:03<00:06, 9.98MB/s]", " 37%|\u2588   | 37.0k/100k [00:03<00:06, 9.98kit/s]",
    "[1, 2000] val loss: 2", "loss: 2.3 [64/60000] of the test set", "Test: [  0/196]\tTime  5.106\tLoss 6.9e+00 (6.9e+00)",
    "Test set: Average loss: 0.0543, Accuracy: 9830/10000 (98%)", "epoch 1: 3/4 files read",
    "Loading checkpoint shards: 100%|\u2588\u2588| 2/2 [00:00<00:00, 3.1it/s]",
    "Validation: 50%|\u2588\u2588   | 5/10 [00:00<00:00,  9.1it/s, loss=1]", "step 1 loss 1 " + "x" * 3000,
]  # fmt: skip


@pytest.mark.parametrize(("line", "figures"), FOUND)
def test_figures_of_a_training_are_found(line, figures):
    assert figures_of(line) == figures


@pytest.mark.parametrize("line", NOTHING)
def test_what_may_be_something_else_is_left_out(line):
    assert figures_of(line) is None


def test_a_loss_that_is_not_finite_is_one():
    assert math.isnan(figures_of("step 3 loss nan").loss)
    assert figures_of("step 3, loss: -inf").loss == -math.inf


def test_the_last_finished_line_comes_first():
    r"""A number may still grow; what a \r ends counts as a line, and a whole progress bar is of one."""
    text = b"step 1 loss 1\nstep 2 loss 2\r\nother\ntrain: 3%|x| 3/9 [0\rtrain: 4%|x| 4/9 [0\rstep 5 loss 1."
    assert [found.step for found in figures_in(text)] == [4, 3, 2, 1]
    assert list(figures_in(b"step 5 loss 1")) == []


def test_a_regular_expression_takes_the_place_of_known_forms():
    pattern = progress_regex(r"it=(?P<step>[\d,]+)(?:/(?P<last_step>\d+))? l=(?P<loss>\S+)")
    assert figures_of("it=1,012/2000 l=2.5 step 3 loss 1", pattern) == Figures(1012, 2000, loss=2.5)
    assert figures_of("it=4 l=high", pattern) == Figures(4)
    assert figures_of("step 3 loss 1", pattern) is None


@pytest.mark.parametrize("text", ["(", "step", r"(?P<steps>\d+)", r"(?P<last_step>\d+)", r"(?P<step>\d+)(?P<lr>\d)"])
def test_an_expression_without_figures_is_refused(text):
    with pytest.raises(UsageError) as refused:
        progress_regex(text)
    assert refused.value.hint


def test_the_lines_of_a_text_together_take_no_longer_than_one_may(monkeypatch):
    """Each of them ends in time, and there may be hundreds."""
    monkeypatch.setattr(figures, "MAX_SEARCH_S", 0.05)
    pattern, before_s = progress_regex(r"(?P<step>(\d+)+)x"), time.process_time()
    with pytest.raises(UsageError, match="takes too long"):
        list(figures_in((b"1" * 18 + b"\n") * 1000, pattern))
    assert time.process_time() - before_s < 2


@pytest.mark.parametrize("piece", [
    "step ", "1,111", "loss ", "e", "1", '" ', "epoch [1]", "1 ", "1.1", "1, ", " ", "e1", "1e", "%|", "|", "100%|",
    "step 1/", "epoch 1 [1/", "epoch 1 [1/1 (", "epoch 1 | 1/", "loss: 1 [", "[1, 1] loss: ",
])  # fmt: skip
def test_no_line_takes_long(piece):
    """However it is made: a reader may meet a thousand of them."""

    def cpu_s():
        before_s = time.process_time()
        for line in ((piece * 2000)[:2000], "step 1 loss 1 " + (piece * 2000)[:1980], "epoch " + (piece * 2000)[:1990]):
            figures_of(line)
        return time.process_time() - before_s

    assert any(cpu_s() < 0.2 for _ in range(3))  # a machine whose caches and cores are shared only ever adds
