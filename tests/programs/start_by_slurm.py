"""Inside a job: starts COMMAND on servers as `slurm_command` says. JSON: servers and counts; writes what the job says of itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from launcher.core.errors import TlaunchError
from launcher.core.records import Device, Server
from launcher.engines.slurm import slurm_command
from launcher.engines.slurm_allocation import cluster_of, read_allocation
from launcher.engines.slurm_time import time_left_s

directory, told, *command = sys.argv[1:]
wanted = json.loads(told)
servers = [Server(name, (Device(0, index),)) for index, name in enumerate(wanted["servers"])]
allocation = read_allocation(os.environ)
facts = {"left_s": time_left_s(allocation, os.environ), "version": allocation.version, "gpus": allocation.gpus_per_node}
facts["cluster"] = [
    [server.server_id, len(server.devices)] for server in cluster_of(allocation, wanted.get("devices")).servers
]
Path(directory, "facts").write_text(json.dumps(facts))
try:
    start = slurm_command(allocation, servers, command, counts=wanted.get("counts"), directory=Path(directory))
except TlaunchError as error:
    sys.exit(str(error))
for path, text in start.files.items():
    path.write_text(text)
environment = {**os.environ, **start.env}
environment = {name: value for name, value in environment.items() if value is not None}
sys.exit(subprocess.run(start.argv, env=environment, stdin=subprocess.DEVNULL, timeout=90, check=False).returncode)
