"""Start a process of tlaunch: the command, or one of its modules with `-m launcher.MODULE`.

tlaunch starts agents, trainers and helpers by the path of this directory: `python .../site-packages/tlaunch ARGUMENTS`.
As a result, they never import tlaunch's package from the current directory or PYTHONPATH, or any module from the
current directory. Python 3.10 has no option for that.
"""

import sys

if not __package__:  # `python .../tlaunch`: sys.path starts with this directory
    from _package import claim_name  # type: ignore[import-not-found]
else:
    from tlaunch._package import claim_name

if __name__ == "__main__" and (not __package__ or not getattr(sys.flags, "safe_path", sys.flags.isolated)):
    del sys.path[0]  # this directory; with `python -m tlaunch`, the current directory


def main() -> None:
    """Run the process that `sys.argv` names. Never returns."""
    claim_name()
    if sys.argv[1:2] == ["-m"] and sys.argv[2:3] and sys.argv[2].startswith("launcher."):
        import runpy  # noqa: PLC0415 - not needed by the command

        module = sys.argv[2]
        del sys.argv[1:3]
        runpy._run_module_as_main(module)  # type: ignore[attr-defined] # noqa: SLF001 - what `python -m` does
    from launcher.cli.main import main as run_command  # noqa: PLC0415 - importable only now

    run_command()


if __name__ == "__main__":
    main()
