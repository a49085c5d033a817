"""What an agent finds out about its ranks for clients: real processes."""

from contextlib import closing

import pytest

from launcher.control.messages import TakeStacks
from launcher.core.codec import decode
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir
from launcher.supervise.stack_collection import StackCollection, SurveyAnswer
from tests.conftest import wait_until


@pytest.fixture
def sent():
    return []


@pytest.fixture
def survey(tmp_path, sent):
    with closing(StackCollection(RunDir(tmp_path), sent.append)) as made:
        yield made


def answers(survey, sent, count):
    wait_until(lambda: (survey.step(), len(sent) >= count)[-1], "the answers")
    return {told.number: decode(SurveyAnswer, told.content) for told in sent}


def test_two_questions_at_once_are_both_answered(tmp_path, ranks, survey, sent):
    running = {global_rank: ranks.start("lock").pid for global_rank in (0, 1)}
    beat({"TLAUNCH_HEARTBEAT_FILE": str(RunDir(tmp_path).heartbeat(1))}, Beat(step=12))
    assert survey.timeout_s is None
    survey.begin(TakeStacks(1), running)
    survey.begin(TakeStacks(2, ((1, 3),)), running)
    told = answers(survey, sent, 2)
    assert {(rank.global_rank, rank.pid, rank.step) for rank in told[1].ranks} == {
        (0, running[0], None), (1, running[1], 12),
    }  # fmt: skip
    assert [rank.global_rank for rank in told[2].ranks] == [1]
    assert all(rank.stack is not None for rank in told[1].ranks)
    assert survey.timeout_s is None
    ranks.processes[0].kill()
    ranks.processes[0].wait()
    survey.begin(TakeStacks(5), {0: running[0]})
    (rank,) = answers(survey, sent, 3)[5].ranks
    assert (rank.global_rank, rank.stack) == (0, None)


@pytest.mark.parametrize(("broken", "trouble"), [(None, None), ("Gathering", "strange"), ("Gathering.close", None)])
def test_a_failure_is_answered_too_and_once(survey, sent, monkeypatch, broken, trouble):
    def fail(*_given):
        raise RuntimeError("strange")

    if broken:
        monkeypatch.setattr(f"launcher.supervise.stack_collection.{broken}", fail)
    survey.begin(TakeStacks(1), {})
    survey.step()
    survey.step()
    (told,) = sent
    answer = decode(SurveyAnswer, told.content)
    assert (told.number, answer.ranks) == (1, ())
    assert trouble in answer.trouble if trouble else not answer.trouble
