"""Whether two machines run the same code."""

import shutil

import launcher.core.resources as fingerprint_module
from launcher.core.resources import fingerprint


def test_a_copy_is_the_same_until_a_module_differs(tmp_path, monkeypatch):
    ours = fingerprint()
    copy = tmp_path / "launcher"
    shutil.copytree(fingerprint_module.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint_module, "PACKAGE", copy)
    (copy / "engines" / ".#mpi.py").symlink_to("somebody@somewhere.123")  # as an editor locks a file
    (copy / ".hidden.py").write_text("")
    (copy / "core" / "gone.py").symlink_to("nowhere")
    assert fingerprint() == ours
    with (copy / "engines" / "mpi.py").open("a") as file:
        file.write("\n")
    assert fingerprint() != ours
