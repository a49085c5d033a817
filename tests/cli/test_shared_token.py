"""The token of runs that are started by hand: who finds which one, and which files are none of it."""

import os
import stat

import pytest

from launcher.cli.launch.shared_token import TOKEN_FILE, draw_token, known_tokens

DRAWN = "0123456789abcdef" * 2


@pytest.fixture(name="places")
def _places(tmp_path, monkeypatch):
    def at(runs, home):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        (tmp_path / runs).mkdir(exist_ok=True)
        return tmp_path / runs

    return at


@pytest.mark.parametrize(
    ("runs", "home"), [("runs", "home"), ("own runs", "home"), ("runs", "own home")], ids=["all", "home", "runs"]
)
def test_servers_that_share_a_place_know_the_token(places, runs, home):
    token = draw_token(places("runs", "home"), {})
    assert len(token) == 32
    assert token in known_tokens(places(runs, home), {})
    assert draw_token(places("runs", "home"), {}) == token
    assert draw_token(places(runs, home), {}) == token


def test_servers_that_share_nothing_know_different_tokens(places):
    token = draw_token(places("runs", "home"), {})
    assert token not in known_tokens(places("other runs", "other home"), {})
    draw_token(places("other runs", "other home"), {})
    assert token not in known_tokens(places("other runs", "other home"), {})
    assert "" not in known_tokens(places("no runs", "no home"), {})


def test_only_the_owner_can_read_it(places, tmp_path):
    runs = places("runs", "home")
    draw_token(runs, {})
    for path in (runs / TOKEN_FILE, tmp_path / "home" / "tlaunch" / TOKEN_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_directory_of_runs_is_not_made_for_it(places):
    runs = places("runs", "home") / "none"
    assert draw_token(runs, {}) in known_tokens(runs, {})
    assert not runs.exists()


def test_a_variable_takes_its_place(places, tmp_path):
    chosen = {"TLAUNCH_COORDINATOR_TOKEN": "mine"}
    runs = places("runs", "home")
    assert (draw_token(runs, chosen), known_tokens(runs, chosen)) == ("mine", ("mine",))
    assert not any(tmp_path.rglob(TOKEN_FILE))


def test_a_server_without_a_state_directory_tries_a_run_without_a_token_too(places, tmp_path, monkeypatch):
    """The directory of runs has the token of an earlier run of a user who had one, or none."""
    runs = places("runs", "home")
    token = draw_token(runs, {})
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/none")
    assert (draw_token(runs, {}), known_tokens(runs, {})) == ("", (token, ""))
    assert (draw_token(tmp_path, {}), known_tokens(tmp_path, {})) == ("", ("",))


def test_a_token_of_the_directory_of_runs_replaces_another_one_at_home(places):
    """Both places were filled by different runs, and the other server sees the home directory alone."""
    draw_token(places("runs", "first home"), {})
    draw_token(places("other runs", "home"), {})
    token = draw_token(places("runs", "home"), {})
    assert token in known_tokens(places("no runs", "home"), {})


def _for_all(path):
    path.write_text(DRAWN)
    path.chmod(0o644)


def _link(path):
    other = path.with_name("other")
    other.write_text(DRAWN)
    other.chmod(0o600)
    path.symlink_to(other)


def _text(text):
    def write(path):
        path.write_text(text)
        path.chmod(0o600)

    return write


def _of_another_user(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    _text(DRAWN)(path)
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    "make",
    [_for_all, _link, _of_another_user, _text(""), _text("x" * 32), _text(DRAWN + "\n"), os.mkfifo, os.mkdir],
    ids=["for all", "link", "of another user", "empty", "letters", "line", "pipe", "directory"],
)
def test_a_file_that_somebody_else_may_have_put_there_is_no_token(places, make):
    runs = places("runs", "home")
    make(runs / TOKEN_FILE)
    token = draw_token(runs, {})
    assert token not in {"", DRAWN, "x" * 32}
    assert known_tokens(runs, {})[0] == token
