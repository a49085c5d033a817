"""Keyboard input from a terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END, QUIT = "up", "down", "page up", "page down", "home", "end", "quit"
_NAMES = {
    b"\x1b[A": UP, b"\x1bOA": UP, b"k": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"j": DOWN, b"\x1b[5~": PAGE_UP, b"b": PAGE_UP,
    b"\x1b[6~": PAGE_DOWN, b" ": PAGE_DOWN, b"\x1b[H": HOME, b"\x1bOH": HOME, b"\x1b[1~": HOME, b"\x1b[F": END,
    b"\x1bOF": END, b"\x1b[4~": END, b"q": QUIT, b"Q": QUIT, b"\x04": QUIT,
}  # fmt: skip
_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)


@contextmanager
def keys_of_terminal() -> Iterator[int | None]:
    """Switch the terminal on stdin to unbuffered input and yield its descriptor; yield None if there is no terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    former = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)


def pressed(descriptor: int | None, wait_s: float) -> list[str]:
    """Wait up to `wait_s` seconds for input and return the pressed keys; `QUIT` if the terminal is gone."""
    if descriptor is None:
        time.sleep(wait_s)
        return []
    if not select.select([descriptor], [], [], max(0.0, wait_s))[0]:
        return []
    typed = os.read(descriptor, 256)
    return keys_in(typed) if typed else [QUIT]


def keys_in(typed: bytes) -> list[str]:
    r"""Decode the bytes from a terminal to keys: characters, or names of special keys.

    >>> keys_in(b"s\x1b[B?")
    ['s', 'down', '?']
    """
    return [_NAMES.get(key) or key.decode("latin-1") for key in _KEY.findall(typed)]
