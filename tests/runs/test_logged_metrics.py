"""The course of a training by what one of its ranks has printed."""

from launcher.core.events import AgentStarted, AttemptStarted, RankStarted
from launcher.core.run_dir import mark_of
from launcher.logs.figures import progress_regex
from launcher.runs import logged_metrics
from launcher.runs.logged_metrics import logged_steps
from launcher.runs.status import look
from tests.programs import acted_run

AGENT = acted_run.someone_gone()


def run_of(directory, text, offset=None, **fields):
    """Of two ranks, of which rank 1 has printed `text`, from `offset` on in a second attempt."""
    events = [AgentStarted(AGENT, None, 2), RankStarted(0, 8), RankStarted(1, 9)]
    if offset is not None:
        events += [AttemptStarted(1, 1), RankStarted(1, 10, 0, offset)]
    run_dir = acted_run.make(directory / "a", events, **fields)
    run_dir.train_log(1).write_bytes(text)
    return run_dir


def steps_of(run_dir, pattern=None):
    global_rank, steps = logged_steps(look(run_dir), pattern)
    return global_rank, [(each.attempt, each.step, each.loss) for each in steps]


def test_steps_are_those_of_the_lines_of_each_attempt(tmp_path):
    """Of the lowest rank that tells any; lines that say nothing of the training are passed over."""
    first = b"hello\nstep 1 loss 3\nstep 2 loss 2\nstep 3 lo"
    mark = b"\n" + mark_of(1)
    run_dir = run_of(tmp_path, first + mark + b"step 2 loss 2.5\n\rtrain: 3%|x| 3/9 [0, loss=1]\r", len(first + mark))
    assert steps_of(run_dir) == (1, [(0, 1, 3.0), (0, 2, 2.0), (1, 2, 2.5), (1, 3, 1.0)])


def test_steps_of_epochs_go_on(tmp_path):
    text = b"".join(b"Epoch %d | Step %d/2 | loss=%d\n" % (epoch, step, step) for epoch in (1, 2) for step in (1, 2))
    assert steps_of(run_of(tmp_path, text))[1] == [(0, 1, 1.0), (0, 2, 2.0), (0, 3, 1.0), (0, 4, 2.0)]


def test_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(logged_metrics, "READ_BYTES", 4096)
    text = b"".join(b"step %d loss 1\n" % step for step in range(1000))
    steps = steps_of(run_of(tmp_path, text))[1]
    assert (100 < len(steps) < 300, steps[-1]) == (True, (0, 999, 1.0))


def test_the_expression_that_was_given_finds_them(tmp_path):
    run_dir = run_of(tmp_path, b"step 1 loss 3\nat=7 cost=2\n")
    assert steps_of(run_dir, progress_regex(r"at=(?P<step>\d+) cost=(?P<loss>\S+)")) == (1, [(0, 7, 2.0)])
