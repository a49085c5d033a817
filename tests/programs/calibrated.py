"""Measure the costs of ranks, and search by them: all ranks have the same numbers, and choose alike.

    calibrated.py RANKS

A line for each network tells what was measured. Exit 0 if all is as it should be.
"""

import json
import sys
from math import inf

import torch
from ranks import fork_ranks
from shard_networks import NETWORKS, inputs_of, network_of

from launcher.core.codec import encode
from launcher.sharding.search import searched
from launcher.trainer.own.cut.calibrate import calibrated
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import trace
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import open_world

CPU = torch.device("cpu")


def ranks_work():
    place = this_place(micro_batches=1)
    torch.set_num_threads(1)
    ranks = place.world_size
    with (
        open_world(place, CPU, "auto") as world,
        Groups(place.global_rank, ranks, ranks, CPU, transport="auto", existing=[world.mp]) as groups,
    ):
        for name in NETWORKS:
            graph = trace(network_of(name), inputs_of(name, 0)).graph
            costs = calibrated(graph, groups, CPU)
            world.check_equal(json.dumps(encode(costs)).encode(), "what was measured")
            assert all(0 < value < inf for value in (costs.flops_per_s, costs.bytes_per_s, costs.operator_s)), costs
            measured = {(each.kind, each.ranks) for each in costs.collectives}
            sizes = [parts for parts in range(2, ranks + 1) if ranks % parts == 0]
            assert measured == {(kind, size) for kind in ("all_reduce", "all_gather", "all_to_all") for size in sizes}
            assert all(each.fixed_s >= 0 and each.s_per_byte >= 0 for each in costs.collectives), costs
            assert all(each.fixed_s + each.s_per_byte > 0 for each in costs.collectives), costs
            chosen = {each: way.strategy for each, way in searched(graph, {}, ranks, costs).items()}
            world.check_equal(json.dumps(chosen).encode(), "what was chosen")
            if world.is_first:
                print(f"{name}: {costs}", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1])
    fork_ranks("calibrated", ranks_work, mp=count)
