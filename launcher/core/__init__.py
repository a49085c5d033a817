"""Errors, records, names and paths shared by all other packages. Standard library only.

To change an event: events.py, launcher/cluster/recorder.py (new fields have defaults; raise `SCHEMA`, and `PROTOCOL`
    in launcher/control/messages.py, for incompatible changes).
To change how files of unknown origin are read: regular_files.py, codec.py (reads are limited in size and never block;
    invalid content raises only `ValueError`).
To change the metrics of a training step: metrics.py, reporting.py, launcher/runs/metrics_reader.py (give new keys a
    default, so that older files stay readable).
To change the grace period: records.py (all processes use `grace_from`).
To change the heartbeat of a program: heartbeat.py (a public interface: existing programs must keep working).
"""
