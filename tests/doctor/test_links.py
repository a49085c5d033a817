"""Which measured connections stand out: pure, on numbers as they could be measured."""

import re
from dataclasses import replace
from itertools import combinations

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.doctor.links import Link, Links, best_of, common_server, described, judge_links, usual

FAST, SLOW = 1.25e9, 1e6  # bytes a second: 10 Gbit/s, 8 Mbit/s


def links(count, slow=(), latency_s=1e-4, late=()):
    """All pairs of `count` servers; those in `slow` are so in the order in which they are written."""
    pairs = []
    for pair in combinations(range(count), 2):
        forth = SLOW if pair in slow else FAST
        back = SLOW if pair[::-1] in slow else FAST
        pairs.append(Link(pair, 0.05 if pair in late else latency_s, forth, back, min(forth, back)))
    return Links(count, count, pairs=tuple(pairs))


def judged(measured):
    servers = (Server(f"h{index + 1}", (Device(0, index),)) for index in range(measured.server_count))
    return judge_links(measured, Cluster(tuple(servers)))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_equal_links_say_nothing(count):
    """One server has no links at all."""
    assert judged(links(count)) == ()


def test_what_was_slow_once_only_is_no_slow_link():
    """A pair counts by the best that it has shown, each way and in time."""
    once, again = links(3, slow=[(0, 1)], late=[(1, 2)]), links(3, slow=[(1, 0)])
    assert judged(once)
    assert judged(best_of(once, again)) == ()
    assert [found.code for found in judged(best_of(once, once))] == [found.code for found in judged(once)]
    assert described(best_of(once, again)) == "10 Gbit/s and 0.1 ms"


def one_pair(forth, back):
    return Links(2, 2, pairs=(Link((0, 1), 1e-4, forth, back, min(forth, back)),))


@pytest.mark.parametrize(("forth", "back"), [(SLOW, SLOW), (SLOW, 4 * SLOW), (FAST / 40, FAST), (FAST, FAST)])
def test_one_pair_that_is_as_fast_both_ways_is_only_told(forth, back):
    """There is nothing to compare it with, however slow it is; nor are busy processors a fault of the network."""
    (found,) = judged(one_pair(forth, back))
    assert (found.code, found.severity.value) == ("links-measured", "note")
    assert re.search(r"h1 and h2: \S+ [MG]bit/s there, \S+ [MG]bit/s back, 0.1 ms", found.message)


@pytest.mark.parametrize(("forth", "back", "sender"), [(SLOW, FAST, "h1"), (6 * SLOW, SLOW, "h2")])
def test_one_pair_that_is_far_slower_one_way_is_a_risk(forth, back, sender):
    """Of either end."""
    (found,) = judged(one_pair(forth, back))
    assert (found.code, found.severity.value, found.servers) == ("slow-link", "risky", (0, 1))
    assert f"h1 and h2 are far slower one way than the other: 8 Mbit/s from {sender}" in found.message
    (again,) = judged(best_of(one_pair(forth, back), one_pair(back, forth)))
    assert again.severity.value == "note"


@pytest.mark.parametrize("count", [3, 4, 9])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_slow_server_is_named_alone(count, bad):
    """Also of three, where it spoils two pairs of three. It sends slowly, and receives as others do."""
    (found,) = judged(links(count, slow=[(bad, other) for other in range(count) if other != bad]))
    assert (found.code, found.servers) == ("slow-link", (bad,))
    assert f"all connections of server h{bad + 1} are slow, and no others" in found.message
    assert f"8 Mbit/s from h{bad + 1} (10 Gbit/s the other way)" in found.message
    assert "usual here are 10 Gbit/s" in found.message


def test_a_single_slow_pair_blames_neither_server():
    """Both reach others fast."""
    (found,) = judged(links(4, slow=[(1, 3), (3, 1)]))
    assert found.servers == (1, 3)
    assert found.message.startswith("1 of 6 pairs of servers are slow: h2 and h4 8 Mbit/s;")


def test_two_halves_have_no_server_in_common():
    """A slow way between two racks; four pairs are shown."""
    (found,) = judged(links(6, slow=[(one, other) for one in range(3) for other in range(3, 6)]))
    assert found.servers == tuple(range(6))
    assert "9 of 15 pairs of servers are slow" in found.message
    assert "and 5 more" in found.message


def test_late_answers_are_told_by_themselves():
    """As fast as the others, once something flows."""
    (found,) = judged(links(3, late=[(0, 2), (1, 2)]))
    assert (found.code, found.servers) == ("late-link", (2,))
    assert "50 ms" in found.message


def test_what_is_usual_survives_one_bad_server():
    """And a pair that is better than all others changes nothing."""
    rates = dict.fromkeys(combinations(range(5), 2), 1.0)
    assert usual({**rates, (0, 1): 9.0}) == 1.0
    assert usual({(0, 1): 1.0, (0, 2): 0.01, (1, 2): 0.01}) == 1.0


def test_a_common_server_must_have_no_good_connection():
    """Two slow pairs of three that share a server may be two faults."""
    pairs = list(combinations(range(4), 2))
    assert common_server([(0, 1), (0, 2), (0, 3)], pairs) == 0
    assert common_server([(0, 1), (0, 2)], pairs) is None
    assert common_server([(0, 1)], pairs) is None


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        (("ib0", "ib0"), "0.1 ms by ib0; with"),
        (("ib0", "ib1"), "0.1 ms by ib0, ib1; with"),
        (("ib0", ""), "0.1 ms; with"),
        ((), "0.1 ms; with"),
    ],
)
def test_the_interface_that_was_measured_is_named_where_it_is_known(interfaces, expected):
    """Of all servers; an older version tells of none."""
    measured = replace(one_pair(FAST, FAST), interfaces=interfaces)
    (found,) = judged(measured)
    assert expected in found.message
    assert described(replace(links(3), interfaces=("eth0",) * 3)) == "10 Gbit/s by eth0 and 0.1 ms"
