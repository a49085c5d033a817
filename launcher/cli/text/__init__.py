"""Text for terminals: tables, amounts, the status line, verdicts and lines of logs."""
