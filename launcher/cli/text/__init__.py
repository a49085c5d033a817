"""Text output for terminals: tables, amounts, the status line, verdicts and log lines."""
