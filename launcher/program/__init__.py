"""Find out whether a rank's command is Python and what it will import. Reads files, executes nothing.

To change what is rejected in a program before it starts: syntax.py, stdin_program.py, module_search.py,
    launcher/cli/launch/program_faults.py (execute and import nothing; if a problem is uncertain, start the program).
To change which modules are preloaded without `--preload`: preload_scan.py (preload only modules that are safe to import
    before a fork).
"""
