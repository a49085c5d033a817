"""List the shared libraries that real compiled programs need."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.program.elf import needed_libraries
from launcher.program.program_command import program_file

COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile a program that needs a library called libmpi.so.12."""
    if COMPILER is None:
        pytest.skip("no C compiler here")
    directory = tmp_path_factory.mktemp("compiled")
    library, program = directory / "libmpi.so.12", directory / "program"
    for argv, source in (
        (["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", library], "int MPI_Init(void) { return 0; }"),
        (["-o", program, library], "int MPI_Init(void); int main(void) { return MPI_Init(); }"),
    ):
        command = [COMPILER, "-x", "c", "-", "-x", "none", *map(str, argv)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return program


def test_a_program_names_its_libraries(program):
    assert needed_libraries(program)[0] == "libmpi.so.12"
    assert any(name.startswith("libc.") for name in needed_libraries(program))


def test_a_damaged_file_raises_nothing(program, tmp_path):
    whole, damaged = program.read_bytes(), tmp_path / "damaged"
    for seed in range(100):
        chance = random.Random(seed)
        data = bytearray(whole[: chance.randrange(len(whole))] if seed % 3 == 0 else whole)
        for _ in range(chance.randrange(1, 30)):
            if data:
                data[chance.randrange(min(len(data), chance.choice((64, 1024, len(data)))))] = chance.randrange(256)
        damaged.write_bytes(data)
        assert isinstance(needed_libraries(damaged), tuple)


@pytest.mark.parametrize("text", ["", "#!/bin/sh\nexit 0\n", "\x7fELF"])
def test_what_is_no_program_needs_nothing(tmp_path, text):
    path = tmp_path / "script"
    path.write_text(text)
    assert needed_libraries(path) == needed_libraries(tmp_path) == needed_libraries(tmp_path / "none") == ()


def test_the_file_of_a_command(tmp_path):
    directory, name = Path(sys.executable).parent, Path(sys.executable).name
    assert program_file([name, "-c", "pass"], str(directory), tmp_path) == directory / name
    assert program_file(["env", name], str(directory), tmp_path) == directory / name
    assert program_file(["none-of-that-name"], str(directory), tmp_path) is None
    assert program_file(["env", "A=1", name], str(directory), tmp_path) is None
