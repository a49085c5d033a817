"""Text output for terminals: tables, amounts, the status line, verdicts and log lines.

To change what is coloured: style.py, log_format.py (the text must have the same meaning without colours).
To change the status line: run_status_line.py, progress_text.py, status_line.py, summary.py (without a terminal, print
    each change as a line; reading the state never blocks).
To change how ranks share a row of a table: rank_rows.py, rank_view.py, launcher/cli/commands/top/top_command.py (rows
    that differ from the others come first; without a terminal, each rank has a row).
"""
