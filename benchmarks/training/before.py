"""Measure an earlier checkout's trainer on the same batches, in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.processes import PROGRAMS

from training.batches import Batches


def steps_before(
    checkout: Path,
    sizes: Sequence[str],
    rounds: Sequence[Batches],
    *,
    mp: int = 1,
    pp: int = 1,
    micro_batches: int = 1,
    work: str = "step",
) -> dict[str, Any]:
    """Return what programs/earlier_trainer.py prints.

    That trainer wants as many pairs as micro batches divide: the last ones are left out.
    """
    task = {
        "settings": [*sizes, "train.device=cpu"],
        "layout": {"dp": 1, "mp": mp, "pp": pp, "micro_batches": micro_batches},
        "parts": micro_batches,
        "work": work,
        "rounds": [
            [
                [
                    (pair.source, pair.target)
                    for pair in batch.examples[: len(batch.examples) // micro_batches * micro_batches]
                ]
                for batch in batches
            ]
            for batches in rounds
        ],
    }
    done = subprocess.run(
        [sys.executable, "-P", PROGRAMS / "earlier_trainer.py"],
        input=json.dumps(task),
        env={**os.environ, "PYTHONPATH": str(checkout)},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
