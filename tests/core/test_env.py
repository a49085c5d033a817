"""What may be shown of an environment."""

import doctest

import pytest

from launcher.core import env
from launcher.core.env import MASK, masked, masked_argv


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "DB_PASSWORD", "MYSQL_PWD", "PASSPHRASE", "GOOGLE_CREDENTIALS"],
)
def test_values_whose_names_look_secret_are_masked(name):
    """No part of the value is left, and not its length either."""
    assert masked(name, "hunter2-and-more") == MASK


def test_passwords_in_urls_are_masked_whatever_the_name():
    """Proxies are the usual place."""
    assert masked("HTTPS_PROXY", "http://me:pa55@proxy:3128/x") == f"http://{MASK}@proxy:3128/x"
    assert masked("INDEX", "https://ghp_tok3n@host/simple") == f"https://{MASK}@host/simple"
    assert masked("HEADER", "Authorization: Bearer abc.def") == f"Authorization: Bearer {MASK}"
    assert masked("DATABASE", "postgres://u:p@ss@h/db") == f"postgres://{MASK}@h/db"


@pytest.mark.parametrize(
    ("name", "value"), [("PATH", "/usr/bin:/bin"), ("RANK", "3"), ("PWD", "/home"), ("X", "a@b:c")]
)
def test_other_values_are_shown(name, value):
    """A log that hides everything helps nobody."""
    assert masked(name, value) == value


def test_secrets_in_a_command_are_masked():
    """Values of options that look secret go, in both spellings; everything else stays."""
    command = [
        "train.py",
        "--api-token",
        "abc",
        "--password=x=y",
        "--key-file",
        "k",
        "--lr",
        "3",
        "-v",
        "a=b",
        "http://u:p@h",
    ]

    assert masked_argv(command) == (
        "train.py", "--api-token", MASK, f"--password={MASK}", "--key-file", MASK, "--lr", "3", "-v", "a=b",
        f"http://{MASK}@h",
    )  # fmt: skip


def test_worked_examples_of_the_docstrings():
    """The examples in the docstrings are true."""
    assert doctest.testmod(env).failed == 0
