"""Recognise commands that read their program from standard input."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from launcher.program.stdin_program import reader_of_stdin

READ = """
python: Python; python3 -u -: Python; python -X dev -Wignore: Python; python -i: Python; python --check-hash-based-pycs never: Python
python /dev/stdin x: Python; python -- -: Python; env A=1 python: Python; python -bB /proc/self/fd/0: Python
bash: bash; bash -s: bash; bash -xs a b: bash; sh -: sh; sh - /dev/stdin: sh; bash --norc -o pipefail: bash; bash +x: bash; bash /dev/stdin: bash; bash --: bash
"""
NAMED = """
python train.py; python -m train -; python -c pass; python -uc pass; python -V; python --version; python -X dev train.py; python -W ignore -- train.py
bash run.sh; bash -c 'echo x'; bash -ec 'echo x' s; bash -x run.sh; bash - run.sh; bash -- run.sh; bash -o pipefail run.sh; bash --version; bash --norc run.sh
env -i python; cat /dev/stdin; true -; ./missing -; env
"""


def found(line, tmp_path):
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return reader_of_stdin(shlex.split(line), search, tmp_path)


@pytest.mark.parametrize("case", READ.strip().replace("\n", "; ").split("; "))
def test_they_are_known_by_their_interpreter(tmp_path, case):
    line, _, name = case.partition(": ")
    assert found(line, tmp_path) == name


@pytest.mark.parametrize("line", NAMED.strip().replace("\n", "; ").split("; "))
def test_other_commands_name_their_program(tmp_path, line):
    assert found(line, tmp_path) is None
