"""Items made by a thread while those before them are used."""

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
    """Yield `items` in order, of which a thread makes up to `depth` ahead of their use, the one that it is at included.

    An error of `items` is raised where the failed item would have come. The thread ends with this iterator: at the end of
    `items`, at an error, and when the iterator is closed, after the item that the thread is at. It begins at the first item.

    The thread gets on while the one that uses the items computes within torch, which needs no interpreter meanwhile.
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
    except BaseException as error:  # noqa: BLE001 - raised again where the items are used
        made.put(_Failed(error))
