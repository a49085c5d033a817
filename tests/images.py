"""Small sets of images in CIFAR-10's binary format."""

import hashlib
from random import Random

from launcher.corpus.images import CLASSES, META_FILE, RECORD_BYTES, TEST_FILE, TRAIN_FILES

COUNTS = (3, 1, 4, 2, 5, 7)  # records of each file, the test's last


def write_images(directory, counts=COUNTS):
    directory.mkdir(parents=True, exist_ok=True)
    random, records = Random(1), []
    for name, count in zip((*TRAIN_FILES, TEST_FILE), counts, strict=True):
        own = [bytes([random.randrange(CLASSES)]) + random.randbytes(RECORD_BYTES - 1) for _ in range(count)]
        (directory / name).write_bytes(b"".join(own))
        records += own
    (directory / META_FILE).write_text("".join(f"class-{label}\n" for label in range(CLASSES)))
    return records


def digest_of(paths):
    """Return one SHA-256 of the bytes of all files, in this order."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()
