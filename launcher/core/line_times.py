"""The records of when a rank's log grew, which an agent makes and readers of the log use.

While ranks run, their agent looks once a second how long each log is, and where one has grown it appends a record to the file
`arrivals` beside it, which is there from the beginning: two integers of 64 bits, little-endian, a time in nanoseconds since 1970
and the bytes that the log had then. What stands between the bytes of two records was written by the time of the second, and after
the look before that. A record with fewer bytes than the one before shows that the log was truncated, and those before it tell nothing
any more; nor do those of a file that was emptied. Behind the last record, what is there was written by the time of the log's last write.

A log that is truncated and has grown past its old length by the next look cannot be told from one that has only grown: what it holds
up to the old length then has the times of what stood there before.
"""

from __future__ import annotations

import struct

RECORD = struct.Struct("<qq")
NOTE_EVERY_S = 1.0
