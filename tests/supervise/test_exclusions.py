"""The file of the devices that an elastic run leaves out."""

import os
import resource

import pytest

from launcher.core.events import DevicesChanged
from launcher.supervise.exclusions import Exclusions
from tests.conftest import file_size_limit
from tests.servers import server

FAILED = DevicesChanged((0,), (), "its rank failed 2 times")
SERVERS = (server("10.0.0.1", 0), server("10.0.0.2", 2))


@pytest.fixture(name="file")
def _file(tmp_path):
    reported = []
    path = tmp_path / "excluded"
    return path, Exclusions(path, SERVERS, (3,), reported.append), reported


def looks(read):
    return [read.look() for _ in range(3)]


def test_it_begins_with_what_is_excluded_at_first(file):
    path, read, _ = file
    assert path.read_text() == "10.0.0.2/1\n"
    assert looks(read) == [None] * 3


def test_a_change_counts_once_it_was_seen_twice(file):
    path, read, _ = file
    path.write_text("# hot:\n  10.0.0.1/0 # very\n\n10.0.0.2\n")
    assert looks(read) == [None, frozenset({0, 2, 3}), None]
    path.write_text("")
    assert looks(read) == [None, frozenset(), None]
    path.write_bytes(b"\xef\xbb\xbf10.0.0.1\n")  # with a byte order mark
    assert looks(read) == [None, frozenset({0, 1}), None]


def test_without_the_file_nothing_changes(file):
    """An editor may be about to rename another one to its place."""
    path, read, reported = file
    path.unlink()
    assert looks(read) == [None] * 3
    path.write_text("10.0.0.1\n")
    assert (looks(read), reported) == ([None, frozenset({0, 1}), None], [])


def test_what_could_not_be_added_is_added_later(file):
    """Each look tries again, and meanwhile the device stays left out whatever the file says."""
    path, read, reported = file
    path.write_bytes(b"10.0.0.1/1\n# \xff\n")
    read.note(FAILED)
    assert path.read_bytes() == b"10.0.0.1/1\n# \xff\n"  # a person would lose what it says
    assert len(reported) == 1
    path.write_text("10.0.0.1/1\n")
    with file_size_limit(0):
        assert frozenset({0, 1}) in looks(read)
    assert path.read_text() == "10.0.0.1/1\n"
    assert frozenset({0, 1}) in looks(read)
    assert path.read_text() == "10.0.0.1/1\n10.0.0.1/0  # its rank failed 2 times\n"
    assert len(reported) == 1


def test_a_file_that_the_run_writes_anew_names_all_that_is_left_out(file):
    """Else a person who deleted it would take back devices at the run's next failure."""
    path, read, _ = file
    path.unlink()
    assert looks(read) == [None] * 3
    read.note(FAILED)
    assert path.read_text() == "10.0.0.2/1\n10.0.0.1/0  # its rank failed 2 times\n"


def test_a_file_that_could_not_be_read_is_tried_again(file):
    path, read, reported = file
    path.write_text("10.0.0.1\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert looks(read) == [None] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(reported) == 1
    assert looks(read)[0] == frozenset({0, 1})


def loop(path):
    path.symlink_to(path)


def dangle(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, loop, dangle])
def test_what_is_no_file_is_told_and_not_waited_for(file, make):
    """A pipe whose other end nobody opens would stop the agent, and with it all supervision."""
    path, read, reported = file
    path.unlink()
    make(path)
    assert looks(read) == [None] * 3
    assert len(reported) == 1
    read.note(FAILED)


def test_a_link_counts_once_it_leads_to_a_file(file):
    path, read, reported = file
    path.unlink()
    dangle(path)
    assert looks(read) == [None] * 3
    path.with_name("nowhere").write_text("10.0.0.1\n")
    assert (looks(read)[1], len(reported)) == (frozenset({0, 1}), 1)


@pytest.mark.parametrize("text", [b"10.0.0.1/9\n", b"10.0.0.3\n", b"0\n", b"\xff\n", b"# \n" * (2 << 20)])
def test_what_names_no_device_is_told_and_changes_nothing(file, text):
    path, read, reported = file
    path.write_bytes(text)
    assert looks(read) == [None] * 3
    assert [str(path) in words for words in reported] == [True]


def test_what_the_run_gives_up_itself_is_added(file):
    path, read, _ = file
    path.write_text("# mine\n10.0.0.2/1\n")
    assert looks(read)[1] == frozenset({3})
    read.note(DevicesChanged((3,), (), "asked for", asked_for=True))
    read.note(FAILED)
    assert path.read_text() == "# mine\n10.0.0.2/1\n10.0.0.1/0  # its rank failed 2 times\n"
    assert looks(read) == [None] * 3


def test_what_a_person_writes_at_that_moment_counts_all_the_same(file):
    path, read, _ = file
    path.write_text("10.0.0.2\n")
    read.note(FAILED)
    assert looks(read)[1] == frozenset({0, 2, 3})
