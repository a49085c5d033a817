"""Run `tlaunch` with `python -m launcher`."""

from launcher.cli.main import main

if __name__ == "__main__":
    main()
