"""Find and check the files of CIFAR-10's binary format.

`cifar-10-binary.tar.gz` unpacks to the directory `cifar-10-batches-bin`:

    data_batch_1.bin ... data_batch_5.bin   records for training
    test_batch.bin                          records for the test
    batches.meta.txt                        names of the ten classes, one a line

A record has 3,073 bytes: the label, 0 to 9, then 1,024 bytes each of red, green and blue, row by row of 32 pixels
(https://www.cs.toronto.edu/~kriz/cifar.html). A file contains nothing else, so its size gives the number of records.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

CLASSES = 10
CHANNELS, SIDE = 3, 32  # side of an image in pixels
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE
DIRECTORY = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
META_FILE = "batches.meta.txt"

_GET_THEM = (
    "unpack cifar-10-binary.tar.gz, or make a small set with `tlaunch data sample --recipe resnet50 --output DIR`"
)
_UNPACK_AGAIN = "unpack or copy the file again"


@frozen
class ImageFile:
    """A CIFAR-10 file that consists of complete records."""

    path: Path
    count: int  # number of records, at least 1


@frozen
class ImageFiles:
    """The files of a CIFAR-10 image set, and the names of its ten classes."""

    train: tuple[ImageFile, ...]
    test: ImageFile
    classes: tuple[str, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the training files, followed by the test file. Images are numbered in this order."""
        return tuple(file.path for file in (*self.train, self.test))


def find_images(path: Path) -> ImageFiles:
    """Find CIFAR-10's files in the directory `path` or its subdirectory `cifar-10-batches-bin`, and check their labels.

    Each file is read once. It may have any number of records, but at least one.

    Raises:
        UnreadableError: the directory or a file is missing or unreadable, a file ends within a record,
            or a label is out of range.
    """
    directory = _directory(path)
    names = (*TRAIN_FILES, TEST_FILE, META_FILE)
    if missing := [name for name in names if not (directory / name).is_file()]:
        others = f" and {len(missing) - 1} more of the {len(names)} files" if len(missing) > 1 else ""
        hint = _GET_THEM
        if any((directory / name).exists() for name in ("data_batch_1", "data_batch_1.mat", "train")):
            hint = f"these files are in the Python or MATLAB format, which is not supported: {_GET_THEM}"
        elif (directory / "train.bin").exists():
            hint = f"these are the files of CIFAR-100: {_GET_THEM}"
        raise UnreadableError(f"{directory}: missing {missing[0]}{others}", hint=hint)
    *train, test = (_checked(directory / name) for name in (*TRAIN_FILES, TEST_FILE))
    meta = directory / META_FILE
    try:
        classes = tuple(meta.read_text(encoding="utf-8").split())
    except OSError as error:
        raise UnreadableError(f"{meta}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{meta}: byte {error.start} is not UTF-8", hint=_UNPACK_AGAIN) from error
    if len(classes) != CLASSES:
        raise UnreadableError(f"{meta}: {len(classes)} names, but there are {CLASSES} classes", hint=_UNPACK_AGAIN)
    return ImageFiles(tuple(train), test, classes)


def _directory(path: Path) -> Path:
    if not path.exists():
        raise UnreadableError(f"{path}: directory of images not found", hint=_GET_THEM)
    if not path.is_dir():
        raise UnreadableError(f"{path}: expected a directory of images, found a file", hint=_GET_THEM)
    below = path / DIRECTORY
    return below if below.is_dir() and not (path / TRAIN_FILES[0]).exists() else path


def _checked(path: Path) -> ImageFile:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            count, rest = divmod(size, RECORD_BYTES)
            if rest or not count:
                raise UnreadableError(
                    f"{path}: the file ends at byte {size:,}, but record {count + 1} begins at byte {size - rest:,} "
                    f"and needs {RECORD_BYTES:,} bytes",
                    hint=_UNPACK_AGAIN,
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                labels = content[::RECORD_BYTES]
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    if max(labels) >= CLASSES:
        place = next(place for place, label in enumerate(labels) if label >= CLASSES)
        raise UnreadableError(
            f"{path}: record {place + 1} has the label {labels[place]} at byte {place * RECORD_BYTES:,}, "
            f"but labels are 0 to {CLASSES - 1}",
            hint=f"use a file in CIFAR-10's binary format; if the format is correct, {_UNPACK_AGAIN}",
        )
    return ImageFile(path, count)
