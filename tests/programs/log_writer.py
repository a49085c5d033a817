"""Processes that append numbered lines to one log as fast as they can: `log_writer.py LOG PROCESSES LINES`.

Prints the seconds that all of them took together, from the moment that all were ready. LINES is the number of lines of
all processes; each is written by one `write`, as unbuffered output is, through one descriptor that all inherit.
"""

import os
import sys
import time

log, process_count, line_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
wait_fd, go_fd = os.pipe()
children = []
for process in range(process_count):
    child = os.fork()
    if child == 0:
        os.close(go_fd)
        os.read(wait_fd, 1)
        for number in range(process, line_count, process_count):
            line = b"%06d of rank output: step %d loss %.4f %s\n" % (number, number, number / 7, b"x" * (number % 90))
            assert os.write(descriptor, line) == len(line)
        os._exit(0)
    children.append(child)
os.close(wait_fd)
started_s = time.perf_counter()
os.close(go_fd)
statuses = [os.waitpid(child, 0)[1] for child in children]
print(time.perf_counter() - started_s)
sys.exit(any(statuses))
