"""Models and devices of the planner's tests, and published rows where they are at hand."""

import json
from pathlib import Path

import pytest

from launcher.core.records import Layout
from launcher.plan.configuration import Configuration, Software, chunks_of
from launcher.plan.measured_rows import PLAIN, row_from
from launcher.plan.model_shape import ModelShape

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "planner" / "published.json"
GPT_175B = ModelShape(hidden=12288, heads=96, seq=2048, vocab=51200, layers=96, ffn=49152, kv_heads=96)
DECODER_7B = ModelShape(
    hidden=4096, heads=32, seq=4096, vocab=32000, layers=32, ffn=11008, kv_heads=32, gated_mlp=True, tied_embeddings=False
)  # fmt: skip
TRANSLATOR = ModelShape(
    hidden=1024, heads=16, seq=128, vocab=32000, layers=6, ffn=4096, kv_heads=16, encoder_layers=6, source_seq=128
)
SMALL = ModelShape(hidden=1024, heads=16, seq=1024, vocab=50304, layers=24, ffn=4096, kv_heads=16)


def configured(model, *, dp=1, mp=1, pp=1, micro_batches=1, micro_batch=1, **software):
    layout = Layout(dp=dp, mp=mp, pp=pp, micro_batches=micro_batches)
    settings = Software(**software)
    return Configuration(layout, micro_batch, settings, chunks_of(model, layout, settings.schedule))


def published(name):
    """The published rows of a set; skips the test where the file is absent."""
    if not PUBLISHED.is_file():
        pytest.skip("shared/planner/published.json is not here")
    rows = json.loads(PUBLISHED.read_text())["rows"]
    return [row_from(row, row["id"], PLAIN) for row in rows if row["set"] == name]
