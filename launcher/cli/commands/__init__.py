"""The commands: one file each, or one file for two similar commands. Only the called command is imported.

To change a command: launcher/cli/main.py (a file or folder here; stdout is for data, all else goes to stderr).
To change the page of `tlaunch report --live`: report/live.py, report/live_server.py, templates/live.html,
    templates/live.js (output of a run never becomes markup; the page loads no other resources).
"""
