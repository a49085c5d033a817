"""No two workers of `pytest -n` use at once what a machine has once."""

from pathlib import Path

import pytest

from .parallel import GROUPS, ONLY_ONE, scope_of

ROOT = Path(__file__).parents[1]


def test_whoever_uses_hosts_or_slurm_is_in_their_group(request):
    used = {
        (item.nodeid.partition("::")[0], group)
        for item in request.session.items
        for fixture, group in ONLY_ONE.items()
        if fixture in getattr(item, "fixturenames", ())
    }
    hosts = {file for file, group in used if group == "hosts"}
    used -= {(file, "slurm") for file in hosts}  # theirs is on the hosts
    assert [(file, group) for file, group in used if not scope_of(file).startswith(group)] == []


@pytest.mark.parametrize("file", GROUPS)
def test_files_of_groups_are_there(file):
    assert (ROOT / file).is_file()
