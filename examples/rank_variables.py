"""A script in the style of MindSpore, which reads its rank from variables and its peers from the rank table.

Start it with `tlaunch run --rank-table rank_tables/rank_table_4pcs.json -- python examples/rank_variables.py`. A MindSpore
program calls `mindspore.set_device("Ascend", device_id)` and `mindspore.communication.init()` where this one prints.
"""

import json
import os
from pathlib import Path

rank, size, device_id = (int(os.environ[name]) for name in ("RANK_ID", "RANK_SIZE", "DEVICE_ID"))
table = json.loads(Path(os.environ["RANK_TABLE_FILE"]).read_text())
devices = [device for server in table["server_list"] for device in server["device"]]
own = next(device for device in devices if int(device["rank_id"]) == rank)
assert int(own["device_id"]) == device_id
assert len(devices) >= size

files = [f"part-{number:03}.mindrecord" for number in range(10)]
share = files[rank::size]  # what a dataset with num_shards=size and shard_id=rank reads
print(f"rank {rank} of {size}: device {device_id} at {own['device_ip']} reads {len(share)} files, first {share[0]}")
