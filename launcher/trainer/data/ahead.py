"""Prefetch the items of an iterable in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

from launcher.core.frozen import frozen

Item = TypeVar("Item")


@frozen
class _Failed:
    error: BaseException


class _End:
    pass


def ahead(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """Yield `items` in order, while a thread prepares up to `depth` items in advance, including the current one.

    An error in `items` is raised at the position of the failed item. The thread starts at the first item. It ends at
    the end of `items`, at an error, or when this iterator is closed, after its current item. It makes progress while
    the consumer computes in torch, which releases the GIL.
    """
    made: SimpleQueue[Item | _Failed | type[_End]] = SimpleQueue()
    places = threading.Semaphore(depth)
    closed = threading.Event()
    thread = threading.Thread(target=_make, args=(items, made, places, closed), name="ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := made.get(), _Failed):
            if item is _End:
                return
            yield item  # type: ignore[misc]
            places.release()
        raise item.error
    finally:
        closed.set()
        places.release()
        thread.join()


def _make(
    items: Iterable[Item],
    made: SimpleQueue[Item | _Failed | type[_End]],
    places: threading.Semaphore,
    closed: threading.Event,
) -> None:
    try:
        iterator = iter(items)
        while places.acquire() and not closed.is_set():
            try:
                item = next(iterator)
            except StopIteration:
                made.put(_End)
                return
            made.put(item)
    except BaseException as error:  # noqa: BLE001 - raised again in the consumer
        made.put(_Failed(error))
