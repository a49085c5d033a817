"""The command line. No other package prints to stdout or stderr.

To change an option of `tlaunch run`: run_options.py, options/run.py, launch/api.py, launch/prepare.py,
    launch/recorded.py (servers started by hand compare their options, see `agreement` in launch/servers.py).
"""
