"""Errors, records, names and paths shared by all other packages. Standard library only.

To change an event: events.py, launcher/cluster/recorder.py (new fields have defaults; raise `SCHEMA`, and `PROTOCOL`
    in launcher/control/messages.py, for incompatible changes).
To change how files of unknown origin are read: regular_files.py, codec.py (reads are bounded and never block; bad
    content raises only `ValueError`).
To change the metrics of a training step: metrics.py, reporting.py, launcher/runs/metrics_reader.py (a new key has a
    default, so that older files stay readable).
To change the grace period: records.py (`grace_from`; all processes use this rule).
To change the heartbeat of a program: heartbeat.py (a public interface: programs of older versions keep working).
"""
