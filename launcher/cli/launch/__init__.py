"""Prepare and start runs. Shared by `run`, `exec`, `doctor`, `render`, `explain` and `launcher.launch`.

To change what `-v` and `-q` print: begin.py, start.py, launcher/cli/text/console.py (always print errors and verdicts).
To change the equivalent of another launcher's option: external/options.py, external/command_lines.py,
    external/tlaunch_line.py (a test compares the code with the tables in docs/mindspore.md and docs/tutorials/).
To change how ranks call a Python function: function_call.py, launch_result.py, launcher/preload/call_function.py (only the
    user can access the pickles).
To change the handle of `launch(..., wait=False)`: run_handle.py, launcher/cli/launch_process.py (the launcher is a separate
    process, because it forks and handles signals).
"""
