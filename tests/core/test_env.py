"""What may be shown of an environment."""

import pytest

from launcher.core.env import MASK, masked


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "DB_PASSWORD", "MYSQL_PWD", "PASSPHRASE", "GOOGLE_CREDENTIALS"],
)
def test_values_whose_names_look_secret_are_masked(name):
    """No part of the value is left, and not its length either."""
    assert masked(name, "hunter2-and-more") == MASK


def test_passwords_in_urls_are_masked_whatever_the_name():
    """Proxies are the usual place."""
    assert masked("HTTPS_PROXY", "http://me:pa55@proxy:3128/x") == f"http://me:{MASK}@proxy:3128/x"


@pytest.mark.parametrize(
    ("name", "value"), [("PATH", "/usr/bin:/bin"), ("RANK", "3"), ("PWD", "/home"), ("X", "a@b:c")]
)
def test_other_values_are_shown(name, value):
    """A log that hides everything helps nobody."""
    assert masked(name, value) == value
