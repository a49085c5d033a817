"""Find a program's own files, and compare their digests between two servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.program.digests import UNREADABLE, digests_of, essential_words
from launcher.program.source import MAX_FILES


@pytest.fixture
def place(tmp_path):

    def write(name, files):
        root = tmp_path / name
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            if path.endswith(".sh") or ("/" not in path and "." not in path):
                (root / path).chmod(0o755)
        return root

    return write


PROGRAM = {
    "train.py": "import torch, util\nfrom package import part\n", "util.py": "import json\n", "package/__init__.py": "",
    "package/part.py": "from . import other\n", "package/other.py": "", "unused.py": "", "data.csv": "1,2",
}  # fmt: skip


def digests(argv, cwd, **environment):
    return digests_of(argv, {"PATH": os.defpath, **environment}, cwd)


@pytest.mark.parametrize("arguments", ["train.py --lr 3", "-u -m train", "-m mpi4py train.py x"])
def test_a_program_is_its_own_file_and_the_modules_that_it_imports(place, arguments):
    found = digests((sys.executable, *arguments.split()), place("here", PROGRAM))
    assert set(found) == {"train.py", "util.py", "package/__init__.py", "package/part.py", "package/other.py"}


def test_where_the_program_lies_makes_no_difference(place):
    here, there = place("here", PROGRAM), place("there/deeper", PROGRAM)
    link = here.parent / "link"
    link.symlink_to(there)
    command = (sys.executable, "train.py")
    assert digests(command, here) == digests(command, there) == digests(command, link)
    (there / "package" / "part.py").write_text("from . import other  # later\n")
    other = digests(command, there)
    assert {name for name, digest in digests(command, here).items() if other[name] != digest} == {"package/part.py"}


def test_modules_on_pythonpath_count_and_code_has_only_those(place):
    cwd, library = place("cwd", {"train.py": "import tools"}), place("cwd/library", {"tools.py": ""})
    assert set(digests((sys.executable, "train.py"), cwd, PYTHONPATH=str(library))) == {"train.py", "tools.py"}
    assert set(digests((sys.executable, "-c", "import tools"), cwd, PYTHONPATH=str(library))) == {"tools.py"}
    assert digests((sys.executable, "-c", "print(1)"), cwd) == {}


def test_a_file_that_cannot_be_parsed_or_read_hides_no_other(place):
    source = "try:\n    import old\nexcept SyntaxError:\n    pass\nimport util\n"
    own = {"train.py": source, "old.py": "print 1", "util.py": "import deeper", "deeper.py": ""}
    cwd = place("here", {**own, "bad.py": "import util\n)"})
    assert set(digests((sys.executable, "train.py"), cwd)) == own.keys()
    # Ranks will say what is wrong with their program.
    assert set(digests((sys.executable, "bad.py"), cwd)) == {"bad.py"}
    assert digests((sys.executable, "gone.py"), cwd) == {"gone.py": UNREADABLE}


def test_a_shell_s_script_is_the_program_and_not_the_shell(place):
    cwd = place("here", {"train.sh": "#!/bin/bash\npython train.py\n", "train.py": ""})
    assert set(digests(("bash", "-e", "train.sh", "train.py"), cwd)) == {"train.sh"}
    assert set(digests(("./train.sh",), cwd)) == {"train.sh"}
    assert digests(("bash", "-c", "train.sh"), cwd) == {}


def test_another_program_is_its_file_unless_it_belongs_to_the_system(place):
    cwd = place("here", {"solver": "\x7fELF"})
    assert set(digests(("./solver", "9"), cwd)) == {"solver"}
    assert digests(("sleep", "9"), cwd) == {}
    assert digests(("no-such-program",), cwd) == {}
    assert digests((), cwd) == {}


def test_the_bundled_trainer_and_what_pip_installed_are_no_files_of_the_program(place):
    installed = place("venv/lib/python3/site-packages", {"tool.py": ""})
    cwd = place("here", {"train.py": "import tool"})
    assert digests((sys.executable, "-m", "launcher.trainer"), cwd, PYTHONPATH=str(Path(__file__).parents[2])) == {}
    assert set(digests((sys.executable, "train.py"), cwd, PYTHONPATH=str(installed))) == {"train.py"}


def test_words_that_say_which_program_it_is_have_no_arguments(place):
    cwd = place("here", PROGRAM)
    environment = {"PATH": os.defpath}
    python = (sys.executable, "-u", "train.py", "--token", "abc")
    assert essential_words(python, environment, cwd) == python[:3]
    assert essential_words(("bash", "train.sh", "secret"), environment, cwd) == ("bash", "train.sh")
    assert essential_words((), environment, cwd) == ()


def test_servers_leave_out_the_same_files_of_a_large_program(place):
    """Which ones is no matter of chance: another process, with another seed of `hash`, finds the same."""
    names = [f"m{number}" for number in range(MAX_FILES + 50)]
    cwd = place("here", {"train.py": f"import {', '.join(names)}", **{f"{name}.py": "" for name in names}})
    code = (
        "import sys; from pathlib import Path; from launcher.program.digests import digests_of\n"
        f"print(sorted(digests_of(({sys.executable!r}, 'train.py'), {{}}, Path({str(cwd)!r}))))"
    )
    seeds = ({**os.environ, "PYTHONHASHSEED": seed} for seed in "12")
    shown = [subprocess.check_output([sys.executable, "-c", code], env=environment) for environment in seeds]
    assert shown[0] == shown[1]
