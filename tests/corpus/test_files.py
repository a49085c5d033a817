"""Write several files together or none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.core.errors import UnreadableError
from launcher.corpus.corpus_files import replacing_together

FULL_DISK = """
import resource, sys
from pathlib import Path
from launcher.core.errors import UnreadableError
from launcher.corpus.preprocess import preprocess

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    preprocess(source=folder / "in.fr", target=folder / "in.en", output=folder / "out", force=True)
except UnreadableError as error:
    print(error.message)
"""


@pytest.mark.parametrize("old", [None, "old\tvieux\n"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, old):
    lines = [f"mot numéro {index}\n" for index in range(10_000)]
    (tmp_path / "in.fr").write_text("".join(lines))
    (tmp_path / "in.en").write_text("".join(lines))
    (tmp_path / "out").mkdir()
    if old:
        (tmp_path / "out" / "fr_en.txt").write_text(old)
    before = {path: path.read_text() for path in (tmp_path / "out").iterdir()}
    program = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert "out: cannot be written: File too large" in ran.stdout
    assert {path: path.read_text() for path in (tmp_path / "out").iterdir()} == before


def test_a_directory_in_the_way_of_the_second_file_leaves_no_first(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    second.mkdir()
    reason = "b: cannot be written, because the path is a directory"
    with pytest.raises(UnreadableError, match=reason), replacing_together([first, second]) as files:
        files[0].write("text")
    assert not first.exists()


def test_an_output_that_is_a_file_is_unwritable(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(UnreadableError, match="out: cannot be written"), replacing_together([tmp_path / "out" / "a"]):
        pass
    assert (tmp_path / "out").read_bytes() == b""
