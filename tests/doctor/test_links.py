"""Which measured connections stand out: pure, on numbers as they could be measured."""

import json
from dataclasses import replace
from itertools import combinations

import pytest

from launcher.core.codec import decode
from launcher.core.records import Cluster, Device, Server
from launcher.doctor.links import Link, Links, best_of, common_server, described, judge_links, usual

FAST, SLOW = 1.25e9, 1e6  # bytes a second: 10 Gbit/s, 8 Mbit/s


def links(count, slow=(), late=()):
    """All pairs of `count` servers; those in `slow` are so in the order in which they are written."""
    pairs = []
    for pair in combinations(range(count), 2):
        forth = SLOW if pair in slow else FAST
        back = SLOW if pair[::-1] in slow else FAST
        pairs.append(Link(pair, 0.05 if pair in late else 1e-4, forth, back, min(forth, back)))
    return Links(count, count, pairs=tuple(pairs))


def one_pair(forth, back):
    return Links(2, 2, pairs=(Link((0, 1), 1e-4, forth, back, min(forth, back)),))


def judged(measured):
    servers = (Server(f"h{index + 1}", (Device(0, index),)) for index in range(measured.server_count))
    return judge_links(measured, Cluster(tuple(servers)))


CASES = {
    "equal links of 1": (links(1), []),
    "equal links of 3": (links(3), []),
    "equal links of 8": (links(8), []),
    "slow once, each way": (best_of(links(3, slow=[(0, 1)], late=[(1, 2)]), links(3, slow=[(1, 0)])), []),
    "one pair, slow both ways": (one_pair(SLOW, SLOW), ["links-measured note 0 1"]),
    "one pair, a little uneven": (one_pair(SLOW, 4 * SLOW), ["links-measured note 0 1"]),
    "one pair, fast and faster": (one_pair(FAST / 40, FAST), ["links-measured note 0 1"]),
    "one pair, fast": (one_pair(FAST, FAST), ["links-measured note 0 1"]),
    "one pair, first is slow": (one_pair(SLOW, FAST), ["slow-link risky 0 1"]),
    "one pair, second is slow": (one_pair(6 * SLOW, SLOW), ["slow-link risky 0 1"]),
    "one pair, slow once each way": (best_of(one_pair(SLOW, FAST), one_pair(FAST, SLOW)), ["links-measured note 0 1"]),
    **{
        f"one pair, by {'+'.join(interfaces)}": (
            replace(one_pair(FAST, FAST), interfaces=interfaces), ["links-measured note 0 1"],
        )
        for interfaces in (("ib0", "ib0"), ("ib0", "ib1"), ("ib0", ""))  # it must be known of all servers
    },
    **{
        f"server {bad} of {count} sends slowly": (
            links(count, slow=[(bad, other) for other in range(count) if other != bad]), [f"slow-link risky {bad}"],
        )
        for count in (3, 4, 9)
        for bad in (0, 2)
    },
    "one slow pair of four servers": (links(4, slow=[(1, 3), (3, 1)]), ["slow-link risky 1 3"]),
    "two halves":
        (links(6, slow=[(one, other) for one in range(3) for other in range(3, 6)]), ["slow-link risky 0 1 2 3 4 5"]),
    "late answers": (links(3, late=[(0, 2), (1, 2)]), ["late-link risky 2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_connections_that_stand_out_are_found(snapshot, name):
    measured, expected = CASES[name]
    found = judged(measured)
    assert [" ".join([one.code, one.severity.value, *map(str, one.servers)]) for one in found] == expected
    if found:
        assert f"{found[0].message}\n  {found[0].hint}" == snapshot


def test_what_is_usual_survives_one_bad_server():
    assert usual({**dict.fromkeys(combinations(range(5), 2), 1.0), (0, 1): 9.0}) == 1.0
    assert usual({(0, 1): 1.0, (0, 2): 0.01, (1, 2): 0.01}) == 1.0
    assert described(links(3)) == "10 Gbit/s and 0.1 ms"
    assert described(replace(links(3), interfaces=("eth0",) * 3)) == "10 Gbit/s by eth0 and 0.1 ms"
    assert described(links(1)) is None


def test_a_common_server_must_have_no_good_connection():
    pairs = list(combinations(range(4), 2))
    assert common_server([(0, 1), (0, 2), (0, 3)], pairs) == 0
    assert common_server([(0, 1), (0, 2)], pairs) is None
    assert common_server([(0, 1)], pairs) is None


def test_a_measurement_of_another_version_is_read():
    pair = {"servers": [0, 1], "latency_s": 1e-4, "forth_bytes_per_s": 2.0, "back_bytes_per_s": 1.0, "bytes_per_s": 1.0}
    written = {"world_size": 2, "server_count": 2, "all_reduce": [], "pairs": [{**pair, "jitter_s": 3}], "colour": "r"}
    assert decode(Links, json.loads(json.dumps(written))).pairs == (Link((0, 1), 1e-4, 2.0, 1.0, 1.0),)
    with pytest.raises(ValueError, match="not a valid Links"):
        decode(Links, {**written, "pairs": [{"servers": "01"}]})
