"""`python -m launcher` is the same as `tlaunch`."""

from launcher.cli.main import main

if __name__ == "__main__":
    main()
