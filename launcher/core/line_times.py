"""The format of `arrivals`, which records when a rank's log grew. The agent writes it; readers of logs use it.

Once a second the agent checks the size of each log. If a log has grown, the agent appends a record to `arrivals` in the
same directory. A record is two little-endian 64-bit integers: the time in nanoseconds since 1970, and the log's size in
bytes at that time.

* Bytes between the sizes of two records were written before the second record's time, after the check before it.
* A record with a smaller size than its predecessor shows a truncation. Earlier records are then invalid.
* Bytes after the last record were written no later than the log's modification time.

If a log is truncated and grows past its old size between two checks, the truncation is not detected. Bytes up to the
old size then keep the times of the old content.
"""

from __future__ import annotations

import struct

RECORD = struct.Struct("<qq")
NOTE_EVERY_S = 1.0
