"""The shapes of objects: what is evidently right is not shown to pydantic, which would find nothing wrong with it."""

from contextlib import suppress

import pytest
from pydantic import ValidationError

import launcher.rank_table.check  # noqa: F401 - declares all shapes
from launcher.rank_table.document import LongInteger
from launcher.rank_table.schema import Shape

VALUES = ["", "1", 0, True, 1.5, None, [], [1], {}, {"a": 1}, LongInteger("1" * 30)]


def below(shape):
    return [each for direct in shape.__subclasses__() for each in (direct, *below(direct))]


@pytest.mark.parametrize("shape", below(Shape), ids=lambda shape: f"{shape.__module__}.{shape.__qualname__}")
def test_what_is_evidently_right_is_right_for_pydantic(shape):
    sound = {name: field.kind() for name, field in shape.fields().items()}
    assert all(field.suits(sound, name) for name, field in shape.fields().items())
    shape.model().model_validate(sound)
    for name, field in shape.fields().items():
        without = {key: value for key, value in sound.items() if key != name}
        for fields in [without, *({**sound, name: value} for value in VALUES)]:
            if field.suits(fields, name):
                shape.model().model_validate(fields)
            else:
                with suppress(ValidationError):
                    shape.model().model_validate(fields)
                    pytest.fail(f"{fields[name]!r} is right for pydantic")
