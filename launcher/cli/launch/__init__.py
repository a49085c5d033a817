"""Prepare and start runs. Shared by `run`, `exec`, `doctor`, `render`, `explain` and `launcher.launch`.

To change what is said with `-v` and `-q`: begin.py, start.py, launcher/cli/text/console.py (errors and verdicts are
    always shown).
To change the equivalent of another launcher's option: external/options.py, external/command_lines.py,
    external/tlaunch_line.py (README.md and docs/mindspore.md have the same tables; a test compares them).
"""
