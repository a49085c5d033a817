"""Computes the digests of training texts. A checkpoint records the digest of its text.

Digests are cached in the user's cache directory. The name of `digest-<digest>.json` has the digest of a file's path. It
contains the digest of the file, which is valid while the file is unchanged.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.core.atomic import write_text
from launcher.core.codec import decode, encode, read_json
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.resources import cache_dir, writable_cache_dir
from launcher.corpus.dataset import PairText, content_digest
from launcher.corpus.text_files import as_unreadable_error

SETTLED_S = 2.0  # a file changed more recently may change again within one clock tick, unnoticed


@frozen
class Stamp:
    """A file's path, and its size, modification time and digest when it was read."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    digest: str = ""


@frozen
class Text:
    """Sentence pairs and the stamps of their files."""

    pairs: PairText
    stamps: tuple[Stamp, ...]

    @property
    def digest(self) -> str:
        """The digest of the pairs, which is the file's digest unless there are two files or the file is reversed."""
        parts = [stamp.digest for stamp in self.stamps] + ["reversed"] * self.pairs.is_reversed
        return parts[0] if len(parts) == 1 else hashlib.sha256("/".join(parts).encode()).hexdigest()


def read_text(pairs: PairText) -> Text:
    """Return a text with the digests of its files. Raise an UnreadableError if one cannot be read."""
    return Text(pairs, tuple(map(_digested, pairs.files)))


def _digested(path: Path) -> Stamp:
    """Return a file's stamp with its digest, which is cached until the file changes."""
    found = stamp_of(path)
    name = f"digest-{key_of(found.path)}.json"
    with suppress(OSError, ValueError):
        stamp = decode(Stamp, read_json(cache_dir() / name))
        if stamp.digest and replace(stamp, digest="") == found:
            return stamp
    digested = replace(found, digest=content_digest(path))
    if time.time_ns() - found.mtime_ns > SETTLED_S * 1e9 and stamp_of(path) == found:
        with suppress(OSError, UnreadableError):  # computed again the next time
            write_text(writable_cache_dir() / name, json.dumps(encode(digested)))
    return digested


def stamp_of(path: Path) -> Stamp:
    with as_unreadable_error(path):
        found = path.stat()
    return Stamp(str(path.absolute()), found.st_size, found.st_mtime_ns, found.st_ino)


def key_of(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
