"""How `pytest -n` deals tests out: what a machine has once goes to one worker, other files where there is room."""

import os

import pytest

# Each worker may have a set of virtual hosts, but only one; there is one Slurm. A Slurm on the hosts has their network.
ONLY_ONE = {"two_hosts": "hosts", "three_hosts": "hosts", "many_hosts": "hosts", "slurm": "slurm"}
GROUPS = {
    **dict.fromkeys((
        "tests/end_to_end/test_doctor.py",
        "tests/end_to_end/test_networks.py",
        "tests/trainer/test_links.py",
    ), "hosts: doctor"),
    **dict.fromkeys((
        "tests/end_to_end/test_disk_stalls.py",
        "tests/end_to_end/test_elastic_trainer.py",
        "tests/end_to_end/test_no_common_disk.py",
        "tests/end_to_end/test_server_faults.py",
    ), "hosts: faults"),
    **dict.fromkeys((
        "tests/end_to_end/test_engine_commands.py",
        "tests/end_to_end/test_engines.py",
        "tests/end_to_end/test_mindspore_hosts.py",
        "tests/end_to_end/test_mpi_world.py",
        "tests/end_to_end/test_rendered_mpi_job.py",
    ), "hosts: engines"),
    **dict.fromkeys((
        "tests/cli/test_render_slurm.py",
        "tests/end_to_end/test_examples.py",
        "tests/end_to_end/test_slurm_run.py",
        "tests/end_to_end/test_slurm_values.py",
    ), "slurm"),
}  # fmt: skip
RANKS = "tests/trainer/test_ranks.py"  # no program there shares anything with another one
FIRST = (  # they take longest: one that began at the end would keep one worker busy, and the others idle
    "hosts: engines", "hosts: faults", "hosts: doctor", "slurm",
    *(f"tests/trainer/test_{name}.py" for name in ("checkpoint", "decode", "layouts", "memory", "ranks")),
    *(f"tests/end_to_end/test_{name}.py" for name in ("resume", "mindspore", "transformer")),
    "tests/torture/test_torture.py", "tests/trainer/test_shared_memory.py", "tests/preload/test_ending.py",
)  # fmt: skip
WAITING_WORKERS = 3  # hosts and Slurm are waited for more than they compute


def scope_of(nodeid):
    """Tests of one scope run in one worker, one after the other: a file shares what its fixtures have started."""
    file = nodeid.partition("::")[0]
    return nodeid if file == RANKS else GROUPS.get(file, file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Workers bring tests into the order in which they are dealt out."""
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item):
    scope = scope_of(item.nodeid).partition("::")[0]
    return FIRST.index(scope) if scope in FIRST else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    config.option.loadscopereorder = False  # the order that workers have brought tests into
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    return len(os.sched_getaffinity(0)) + WAITING_WORKERS
