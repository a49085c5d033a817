"""The run controller, which decides the next step of a run, and the messages between servers.

To change when ranks are ended or restarted: controller.py, evidence_collection.py, outcome.py (the controller has no
    side effects; add a history to tests/control/histories/).
To change the devices of an attempt in an elastic run: membership.py, launcher/mesh/layouts.py (identify devices by
    their rank in the full table; servers keep their index).
To change a message between servers: messages.py (raise `PROTOCOL`, because servers with different versions refuse each
    other).
"""
