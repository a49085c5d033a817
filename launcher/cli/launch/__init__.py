"""Prepare and start runs. Shared by `run`, `exec`, `doctor`, `render`, `explain` and `launcher.launch`.

To change what `-v` and `-q` print: begin.py, start.py, launcher/cli/text/console.py (always print errors and verdicts).
To change the equivalent of another launcher's option: external/options.py, external/command_lines.py,
    external/tlaunch_line.py (a test compares the code with the tables in docs/mindspore.md and docs/tutorials/).
"""
