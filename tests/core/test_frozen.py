"""Records compare, hash, print and are replaced as frozen dataclasses are."""

from dataclasses import asdict, dataclass, field, replace

from launcher.core.frozen import frozen


def make(decorate):
    @decorate
    class Point:
        x: int
        y: tuple[int, ...] = (1, 2)
        note: str = field(default="", compare=False)

    return Point


OURS = make(frozen)


def test_it_is_a_dataclass_like_the_library_s():
    theirs = make(dataclass(frozen=True))
    assert repr(OURS(1)) == repr(theirs(1)).replace("make.<locals>.", "")
    assert hash(OURS(1)) == hash(theirs(1))
    assert asdict(OURS(1, note="n")) == asdict(theirs(1, note="n"))
    assert replace(OURS(1), x=2) == OURS(2)


def test_equal_means_of_one_class_and_with_equal_fields():
    assert OURS(1, note="a") == OURS(1, note="b")
    assert OURS(1) != OURS(2)
    assert OURS(1) != make(frozen)(1)
    assert len({OURS(1), OURS(1), OURS(2)}) == 2


def test_methods_of_the_class_s_own_stay():
    @frozen
    class Named:
        name: str

        def __repr__(self):
            return self.name

    assert repr(Named("n")) == "n"
