"""What is reported of disks that do not answer, and when."""

from launcher.control.disk_stalls import RECENT_S, DiskStalls


def test_a_stall_is_reported_once_with_all_servers_that_have_it_and_so_is_its_end():
    stalls = DiskStalls("/runs/a")
    assert stalls.look({}, 0.0) is None
    assert stalls.look({"h1": 4.9, "h2": 4.0}, 5.0) is None
    assert not stalls.under_way
    assert stalls.look({"h1": 5.1, "h2": 4.2, "h3": 0.2}, 6.0) == (
        "the disk with /runs/a has not responded for 5 s on h1 and h2: ranks that use it wait until it responds"
    )
    assert stalls.look({"h1": 60.0, "h2": 61.4}, 62.0) is None
    assert stalls.look({"h2": 61.9}, 62.5) is None
    assert stalls.look({}, 63.0) == "the disk with /runs/a responds again after 62 s"
    assert stalls.look({}, 64.0) is None
    assert stalls.look({"h3": 7.0}, 90.0) is not None


def test_a_single_server_has_no_name():
    stalls = DiskStalls("/runs/a")
    assert stalls.look({"": 61.0}, 1.0) == (
        "the disk with /runs/a has not responded for 61 s: ranks that use it wait until it responds"
    )


def test_a_verdict_during_a_stall_or_soon_after_it_names_the_disk():
    stalls = DiskStalls("/runs/a")
    assert stalls.remark(0.0) is None
    stalls.look({"h1": 30.0}, 100.0)
    assert stalls.remark(101.0) == "the disk with /runs/a has not responded for 30 s on h1"
    stalls.look({}, 105.0)
    assert stalls.remark(108.0) == (
        "the disk with /runs/a had not responded for 30 s on h1, until 3 s before the verdict"
    )
    assert stalls.remark(106.0 + RECENT_S) is None
