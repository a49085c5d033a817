"""Text output for terminals: tables, amounts, the status line, verdicts and log lines.

To change what is coloured: style.py, log_format.py (words say the same without colours).
To change the status line: run_status_line.py, progress_text.py, status_line.py, summary.py (off a terminal each
    change is a line; a look never blocks).
To change how ranks share a row of a table: rank_rows.py, rank_view.py, launcher/cli/commands/top/top_command.py
    (rows that differ come first; without a terminal each rank has a row).
"""
