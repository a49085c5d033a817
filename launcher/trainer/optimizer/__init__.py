"""The sharded optimizer: its state is partitioned over the data-parallel ranks."""
