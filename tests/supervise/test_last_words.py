"""Logs that end with a traceback although the rank exited with 0."""

import os
from pathlib import Path

import pytest

from launcher.supervise.attempts import LAST_BYTES, doubtful_ends

HEADER = "Traceback (most recent call last):\n"
HANDLED = f'{HEADER}  File "/a/train.py", line 4, in step\n    x()\nRuntimeError: no\n'
ERROR = HANDLED.replace(HEADER, f'{HEADER}  File "/a/train.py", line 9, in <module>\n    step()\n')
MODULE = ERROR.replace("/a/train.py", "<frozen runpy>", 1).replace("<module>", "_run_module_as_main")
THREAD = f"Exception in thread Thread-1 (load):\n{HANDLED}"
HARMLESS = f"Exception ignored in: <function f at 0x7f>\n{ERROR}"


@pytest.mark.parametrize(("text", "doubtful"), [
    (ERROR, True), (f"step 1\n{ERROR}\n\n", True), (THREAD, True), ("x" * 2 * LAST_BYTES + f"\n{ERROR}", True),
    (f"[rank0]: {ERROR}".replace("\n", "\n[rank0]: ").removesuffix("[rank0]: "), True),
    (MODULE, True), (HANDLED, False), (f"WARNING retrying\n{HANDLED}", False),
    (f"{ERROR}step 2\n", False), (HARMLESS, False), ("step 1\n", False), ("", False), (ERROR.partition("Runtime")[0], False),
])  # fmt: skip
def test_only_a_traceback_at_the_very_end_is_doubtful(tmp_path, text, doubtful):
    log = tmp_path / "train.log"
    log.write_text(text)
    warnings = list(doubtful_ends({1: (log, 0)}, {}))
    assert len(warnings) == doubtful
    assert all("rank 1 " in warning and "RuntimeError: no, at train.py:4 in step" in warning for warning in warnings)


def test_ranks_that_end_alike_share_a_warning(tmp_path):
    """What an earlier attempt wrote does not count, nor does what is no file."""
    logs = {}
    for rank, text in enumerate([ERROR, ERROR, ERROR.replace("no", "yes")]):
        logs[rank] = (tmp_path / f"{rank}.log", 0)
        logs[rank][0].write_text(text)
    logs[3] = (logs[0][0], len(ERROR))
    os.mkfifo(tmp_path / "pipe")
    logs[4], logs[5] = (tmp_path / "pipe", 0), (tmp_path / "none", 0)
    assert [warning.split(" exited")[0] for warning in doubtful_ends(logs, {})] == ["ranks 0-1", "rank 2"]


def test_a_program_that_exits_with_0_has_handled_its_own_exception(tmp_path):
    """What another program has printed counts, and so does what the hook has recorded."""
    log, program = tmp_path / "train.log", Path("/a/train.py")
    log.write_text(ERROR)
    assert not list(doubtful_ends({1: (log, 0)}, {1: program}))
    assert list(doubtful_ends({1: (log, 0)}, {1: Path("/a/wrapper.py")}))
