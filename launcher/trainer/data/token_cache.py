"""The cache of token ids, written once per server for each text and tokenizer.

The user's cache directory contains:

    tokens-<digest>/      digest of text, tokenizer and format, so it is never stale; independent of truncation lengths

Digests of texts are cached next to it, see launcher/corpus/text_digest.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from launcher.core.atomic import new_directory
from launcher.core.codec import encode
from launcher.core.errors import UnreadableError
from launcher.core.resources import cache_dir, writable_cache_dir
from launcher.corpus.dataset import is_empty, no_filled_pairs
from launcher.corpus.text_digest import Text, key_of, stamp_of
from launcher.corpus.text_files import as_unreadable_error
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.data.tokens import (
    BOUND,
    BOUNDS,
    ID_TYPES,
    IDS,
    INDEX,
    Integers,
    StoredTokens,
    TokenIndex,
    encoded,
    open_tokens,
)
from launcher.trainer.telemetry.heartbeat import getting_on

FORMAT = "tokens-1"  # part of the directory's name; change it when the format of the files changes
CHUNK_PAIRS = 10_000  # pairs per chunk that a thread encodes
TELL_S = 5.0  # between progress lines
NAP_S = 0.05


def tokens_name(digest: str, tokenizer: Tokenizer, *, normalise: bool = True) -> str:
    form = ("normalised",) if normalise else ()
    return f"tokens-{key_of(FORMAT, digest, hashlib.sha256(tokenizer.serialized).hexdigest(), *form)}"


def find_tokens(name: str) -> StoredTokens | None:
    """Return the token ids stored under `name` by `write_tokens`, or None if they are missing or incomplete."""
    with suppress(OSError, ValueError):
        return open_tokens(cache_dir() / name)
    return None


def write_tokens(text: Text, tokenizer: Tokenizer, *, normalise: bool = True) -> None:
    """Encode all pairs of `text` and store their ids, unless they are stored already. Concurrent calls are safe.

    Memory use is bounded: pairs are processed in chunks, on as many threads as there are cores.

    Raises:
        UnreadableError: a line is malformed, there are no pairs, the text changes during the encoding, or the user's cache
            directory is not writable.
    """
    name = tokens_name(text.digest, tokenizer, normalise=normalise)
    if find_tokens(name):
        return
    directory = writable_cache_dir()
    try:
        with _locked(directory, name) as is_alone:
            if find_tokens(name):  # another process was faster
                return
            _remove_damaged(directory / name)
            for left_by_killed in directory.glob(f".{name}.*.partial") if is_alone else ():
                shutil.rmtree(left_by_killed, ignore_errors=True)
            with new_directory(directory / name) as aside:
                _write(aside, text, tokenizer, normalise=normalise)
    except OSError as error:
        if find_tokens(name):  # another process was faster, on a file system without locks
            return
        raise UnreadableError(
            f"{directory}: cannot store the token ids of {text.pairs}: {error.strerror}",
            hint="free disk space: the token ids need about as much space as the text, or set TLAUNCH_CACHE_DIR",
        ) from error


def _remove_damaged(path: Path) -> None:
    if not path.is_dir():
        return
    try:
        open_tokens(path)
    except (OSError, ValueError) as error:
        print(f"{path} is damaged and is rewritten: {error}", flush=True)
        shutil.rmtree(path)


def _write(directory: Path, text: Text, tokenizer: Tokenizer, *, normalise: bool) -> None:
    with as_unreadable_error(text.pairs.path):
        raw = text.pairs.path.open("rb")
    with raw, (directory / IDS).open("wb") as ids, (directory / BOUNDS).open("wb") as bounds:
        filled = _FilledPairs(text.pairs.read(raw, normalise=normalise))
        progress = _Progress(text)
        pair_count = id_count = 0
        counts = np.zeros(tokenizer.size, np.int64)
        id_type = ID_TYPES[0] if tokenizer.size <= 1 << 16 else ID_TYPES[1]
        bounds.write(np.zeros(1, BOUND).tobytes())
        for chunk_ids, chunk_bounds in _encoded_in_parallel(filled, tokenizer):
            is_target = np.repeat(np.arange(len(chunk_bounds) - 1) % 2 == 1, np.diff(chunk_bounds))
            counts += np.bincount(chunk_ids[is_target], minlength=tokenizer.size)
            ids.write(chunk_ids.astype(id_type).tobytes())
            bounds.write((chunk_bounds[1:] + id_count).astype(BOUND).tobytes())
            pair_count += len(chunk_bounds) // 2
            id_count += len(chunk_ids)
            progress.report(pair_count, raw.tell())
    if not pair_count:
        raise no_filled_pairs(text.pairs)
    for stamp in text.stamps:
        if stamp_of(Path(stamp.path)) != replace(stamp, digest=""):
            raise UnreadableError(
                f"{stamp.path} changed while it was read", hint="start again when the file is complete"
            )
    index = TokenIndex(
        pair_count, id_count, id_type, filled.empty_count, filled.first_empty_line, tuple(counts.tolist())
    )
    (directory / INDEX).write_text(json.dumps(encode(index)), encoding="utf-8")


def _encoded_in_parallel(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[tuple[Integers, Integers]]:
    """Encode pairs in parallel threads, since sentencepiece releases the GIL, and yield their ids in order."""
    thread_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    remaining = iter(pairs)
    at_work: deque[Future[tuple[Integers, Integers]]] = deque()
    with ThreadPoolExecutor(thread_count) as threads:
        while True:
            # One chunk more than threads, so that a free thread always has work.
            while len(at_work) <= thread_count and (chunk := list(islice(remaining, CHUNK_PAIRS))):
                at_work.append(threads.submit(encoded, chunk, tokenizer))
            if not at_work:
                return
            yield at_work.popleft().result()


class _FilledPairs:
    """An iterable of the pairs without an empty side. It counts the pairs that it skips."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = pairs
        self.empty_count = 0
        self.first_empty_line = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for line, pair in enumerate(self._pairs, start=1):
            if is_empty(pair):
                self.empty_count += 1
                self.first_empty_line = self.first_empty_line or line
            else:
                yield pair


class _Progress:
    def __init__(self, text: Text) -> None:
        self._text = text
        self._began_s = time.monotonic()
        self._next_s = self._began_s + TELL_S

    def report(self, pair_count: int, bytes_read: int) -> None:
        getting_on()
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + TELL_S
        elapsed_s, share = now_s - self._began_s, min(1.0, bytes_read / self._text.stamps[0].size)
        print(
            f"encoding {self._text.pairs}: {pair_count:,} pairs, {share:.0%}, {pair_count / elapsed_s:,.0f} pairs/s, "
            f"{elapsed_s * (1 - share) / share:.0f} s left",
            flush=True,
        )


@contextmanager
def _locked(directory: Path, name: str) -> Iterator[bool]:
    """Hold the lock `name` in `directory`. Yield True, or False if the file system does not support locks."""
    path = directory / f".{name}.lock"
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                getting_on()
                time.sleep(NAP_S)
                continue
            except OSError:
                yield False
                return
            try:
                is_there = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            except FileNotFoundError:
                is_there = False
            if not is_there:  # the previous holder has removed the file
                continue
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)
            return
