"""`tlaunch table`: its commands by name, and how three of them hand their results over."""

import os

import pytest

from launcher.cli.commands.table import COMMANDS

TABLE = "rank_table_2pcs.json"
WRITERS = {
    "generate": "table generate --devices 2 --server-id 10.0.0.1",
    "merge": f"table merge {TABLE}",
    "convert": f"table convert {TABLE} --to v1.0",
}


@pytest.fixture(params=WRITERS)
def command(request, launcher, sample_tables):
    launcher.write(TABLE, (sample_tables / TABLE).read_text())
    return WRITERS[request.param]


def assert_refused(launcher, command, *words):
    told = launcher.refused(2, command)
    assert all(word in told for word in ("! hint: ", *words))
    assert ".partial" not in told


def test_file_is_announced(launcher, command):
    expected = launcher.call(*command.split()).stdout
    done = launcher.call(*command.split(), "-o", "new.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].startswith("wrote new.json: ")
    made = launcher.directory / "new.json"
    assert made.read_text() == expected
    assert made.stat().st_mode & 0o777 & ~0o640 == 0


@pytest.mark.parametrize("exists", [True, False])
def test_link_stays_and_what_it_leads_to_is_replaced(launcher, command, exists):
    target = launcher.write("elsewhere/target.json", "precious")
    if not exists:
        target.unlink()
    link = launcher.directory / "link.json"
    link.symlink_to("elsewhere/target.json")
    assert_refused(launcher, f"{command} -o link.json", "link.json")
    assert not exists or target.read_text() == "precious"
    assert launcher.call(*command.split(), "-o", "link.json", "--force").returncode == 0
    assert link.is_symlink()
    assert "server_list" in target.read_text()
    assert [path.name for path in target.parent.iterdir()] == ["target.json"]


def test_what_can_never_be_replaced(launcher, command):
    (launcher.directory / "link.json").symlink_to("link.json")
    os.mkfifo(launcher.directory / "pipe.json")
    (launcher.directory / "folder.json").mkdir()
    launcher.write("full.json", "precious")
    for name in ("pipe.json", "folder.json", "link.json", "nowhere/table.json"):
        for more in ("", " --force"):
            assert_refused(launcher, f"{command} -o {name}{more}", name)
    assert_refused(launcher, f"{command} -o full.json", "full.json", "--force")
    assert (launcher.directory / "pipe.json").is_fifo()
    assert (launcher.directory / "full.json").read_text() == "precious"


def test_text_is_utf8_whatever_the_terminal_is(launcher):
    arguments = ("table", "generate", "--devices", "1", "--server-id", "größe")
    done = launcher.call(*arguments, env={"PYTHONIOENCODING": "ascii:backslashreplace", "PYTHONUTF8": "0"})
    assert '"server_id": "größe"' in done.stdout


def test_reader_that_has_gone_is_no_failure(launcher, command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = launcher.call(*command.split(), stdout=stdout)
    assert done.returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_and_exit_codes(launcher, name):
    told = " ".join(launcher.call("table", name, "--help", env={"COLUMNS": "200"}).stdout.split())
    examples, _, codes = told.partition("Examples:")[2].partition("Exit codes: 0")
    assert f"tlaunch table {name} " in examples
    assert "2 wrong usage, or a " in codes
