"""`python -m launcher.trainer.links`: measure the connections between ranks."""

from launcher.trainer.__main__ import leave
from launcher.trainer.links.measurement import main

if __name__ == "__main__":
    leave(main())
