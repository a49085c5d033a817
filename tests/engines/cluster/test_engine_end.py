"""How long an engine may take to end by itself."""

from types import SimpleNamespace

import pytest

from launcher.engines.cluster import engine_end
from launcher.engines.cluster.engine_end import PATIENCE_S, WORDS_PATIENCE_S, EngineEnd


@pytest.mark.parametrize(
    ("patient", "tells", "patience_s"),
    [(True, False, PATIENCE_S), (True, True, WORDS_PATIENCE_S), (False, True, 0.0), (False, False, 0.0)],
)
def test_an_engine_is_waited_for_longer_only_where_its_end_tells_something(monkeypatch, patient, tells, patience_s):
    """A person waits for the end of every run, and some engines never end."""
    monkeypatch.setattr(engine_end, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert EngineEnd(None, patient=patient, tells=tells).due == 1000.0 + patience_s
    assert PATIENCE_S < 5 < WORDS_PATIENCE_S
