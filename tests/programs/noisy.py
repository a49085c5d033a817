"""A rank that prints what logs must survive: `python noisy.py LINES`."""

import sys

for number in range(int(sys.argv[1])):
    print(f"line {number} of rank output, long enough to fill more than one block in the end")
sys.stdout.flush()
sys.stdout.buffer.write(b"broken \xff\xfe utf-8\n\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J\nno newline at the end")
