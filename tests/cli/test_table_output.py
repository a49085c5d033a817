"""How `generate`, `merge` and `convert` hand their results over: one way for all three."""

import os

import pytest

TABLE = "rank_table_2pcs.json"
COMMANDS = {
    "generate": ("--devices", "2", "--server-id", "10.0.0.1"),
    "merge": (TABLE,),
    "convert": (TABLE, "--to", "v1.0"),
}


@pytest.fixture(params=COMMANDS)
def command(request, launcher, sample_tables):
    """Run one of the three, in a directory with a table."""
    (launcher.directory / TABLE).write_bytes((sample_tables / TABLE).read_bytes())
    return lambda *more, **options: launcher.run("table", request.param, *COMMANDS[request.param], *more, **options)


def assert_refused(done, words):
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "hint: " in done.stderr
    assert ".partial" not in done.stderr


def test_file_is_announced(command, tmp_path):
    """The file holds what stdout would, for owner and group; one line on stderr says what was written."""
    expected = command().stdout
    done = command("-o", "new.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == "wrote new.json: v1.0, 1 server, 2 devices"
    assert (tmp_path / "new.json").read_text() == expected
    assert (tmp_path / "new.json").stat().st_mode & 0o777 & ~0o640 == 0


def test_link_stays_and_what_it_leads_to_is_replaced(command, tmp_path):
    """With --force the target is written anew, beside itself; without, nothing is touched."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "target.json").write_text("precious")
    (tmp_path / "link.json").symlink_to("elsewhere/target.json")
    assert_refused(command("-o", "link.json"), "link.json exists already")
    assert (folder / "target.json").read_text() == "precious"
    assert command("-o", "link.json", "--force").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "server_list" in (folder / "target.json").read_text()
    assert [path.name for path in folder.iterdir()] == ["target.json"]


def test_link_that_leads_nowhere_exists(command, tmp_path):
    """It is not replaced unasked; with --force its target is made."""
    (tmp_path / "link.json").symlink_to("later.json")
    assert_refused(command("-o", "link.json"), "link.json exists already")
    assert not (tmp_path / "later.json").exists()
    assert command("-o", "link.json", "--force").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "server_list" in (tmp_path / "later.json").read_text()


def test_link_to_itself_cannot_be_written(command, tmp_path):
    """It is refused, and stays."""
    (tmp_path / "link.json").symlink_to("link.json")
    assert_refused(command("-o", "link.json", "--force"), "link.json cannot be written: ")
    assert (tmp_path / "link.json").is_symlink()


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_pipes_and_directories_are_never_replaced(command, tmp_path, more):
    """What is no regular file stays what it is."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe.json", "folder.json"):
        assert_refused(command("-o", name, *more), f"{name} is no regular file")
    assert (tmp_path / "pipe.json").is_fifo()


def test_place_that_cannot_be_written(command):
    """A missing directory is told with the name that was given, not with that of the file aside."""
    done = command("--output", "nowhere/table.json")
    assert_refused(done, "error: nowhere/table.json cannot be written: No such file or directory")


def test_text_is_utf8_whatever_the_terminal_is(launcher):
    """On stdout as in a file: a name outside ASCII is not lost."""
    arguments = ("table", "generate", "--devices", "1", "--server-id", "größe")
    done = launcher.run(*arguments, env={"PYTHONIOENCODING": "ascii:backslashreplace", "PYTHONUTF8": "0"})
    assert '"server_id": "größe"' in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_reader_that_has_gone_is_no_failure(launcher, sample_tables, name):
    """As in `| head`: nobody reads, and nobody is told."""
    (launcher.directory / TABLE).write_bytes((sample_tables / TABLE).read_bytes())
    reader, writer = os.pipe()
    os.close(reader)
    process = launcher.start("table", name, *COMMANDS[name], stdout=writer)
    os.close(writer)
    assert process.wait(60) == 0
