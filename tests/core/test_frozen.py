"""Records compare, hash, print and are replaced as frozen dataclasses are."""

from dataclasses import asdict, dataclass, field, replace

import pytest

from launcher.core.frozen import frozen


def make(decorate):
    @decorate
    class Point:
        x: int
        y: tuple[int, ...] = (1, 2)
        note: str = field(default="", compare=False)

    return Point


@pytest.fixture
def ours():
    return make(frozen)


def test_it_is_a_dataclass_like_the_library_s(ours):
    theirs = make(dataclass(frozen=True))
    assert repr(ours(1)) == repr(theirs(1)).replace("make.<locals>.", "")
    assert hash(ours(1)) == hash(theirs(1))
    assert asdict(ours(1, note="n")) == asdict(theirs(1, note="n"))
    assert replace(ours(1), x=2) == ours(2)


def test_equal_means_of_one_class_and_with_equal_fields(ours):
    assert ours(1, note="a") == ours(1, note="b")
    assert ours(1) != ours(2)
    assert ours(1) != make(frozen)(1)
    assert len({ours(1), ours(1), ours(2)}) == 2


def test_methods_of_the_class_s_own_stay():
    @frozen
    class Named:
        name: str

        def __repr__(self):
            return self.name

    assert repr(Named("n")) == "n"
