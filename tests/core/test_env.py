"""What may be shown of an environment and a command."""

import pytest

from launcher.core.env import MASK, is_secret, masked, masked_argv

SECRET_NAMES = (
    "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "DB_PASSWORD", "MYSQL_PWD", "PASSPHRASE", "GOOGLE_CREDENTIALS",
    "PGPASSWORD", "ACCESSTOKEN", "APIKEY", "--hfToken", "clientSecret", "OPENAI_API_KEYS", "API_TOKENS", "SSH_AUTH_SOCK",
    "OAUTH2", "TOKEN2", "X-Api-Key", "Authorization", "Cookie", "SENTRY_DSN", "SMTP_PASS", "AZURE_SAS", "GITHUB_PAT",
    "CONNECTION_STRING", "SLACK_WEBHOOK_URL", "JWT", "PRIVATE_REPO", "db.password", "SECRETS", "auth", "--key-file",
)  # fmt: skip
OTHER_NAMES = (
    "PATH", "PWD", "OLDPWD", "RANK", "--max-tokens", "--tokenizer", "TOKENIZERS_PARALLELISM", "num_tokens_per_batch",
    "--author", "AUTHORS", "KEYBOARD", "MONKEY", "--pad-token-id", "eos_token", "--mask-token", "XAUTHORITY", "COMPASS", "--bypass",
    "PATTERN", "SALTED", "BYPASSED", "PASS_THROUGH", "SASL", "SIGNATURES_OF_LIFE", "",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_values_whose_names_look_secret_are_masked(name):
    """No part of the value is left, and not its length either."""
    assert masked(name, "hunter2-and-more") == MASK


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_parts_of_words_say_nothing(name):
    assert not is_secret(name)
    assert masked(name, "512") == "512"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        # In headers and in JSON, what stands after a secret's name, and nothing else of them.
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
        ("authorization: bearer abc.def", f"authorization: bearer {MASK}"),
        ("Authorization: abc def", f"Authorization: {MASK}"),
        ("X-Api-Key: abc", f"X-Api-Key: {MASK}"),
        ("X-Api-Key:abc", f"X-Api-Key:{MASK}"),
        ("Accept: text/html\nCookie: a=b; c=d\nX: y", f"Accept: text/html\nCookie: {MASK}\nX: y"),
        ('{"api_key": "abc", "lr": 3}', f'{{"api_key": {MASK}, "lr": 3}}'),
        ("{'max_tokens':512,'token':'abc'}", f"{{'max_tokens':512,'token':{MASK}}}"),
        # In a URL and in a line of shell.
        ("http://me:pa55@proxy:3128/x", f"http://{MASK}@proxy:3128/x"),
        ("https://ghp_tok3n@host/simple", f"https://{MASK}@host/simple"),
        ("postgres://u:p@ss@h/db", f"postgres://{MASK}@h/db"),
        ("https://h/x?token=abc&y=1", f"https://h/x?token={MASK}&y=1"),
        ("s3://b/x?X-Amz-Expires=9&X-Amz-Signature=abc", f"s3://b/x?X-Amz-Expires=9&X-Amz-Signature={MASK}"),
        ("https://a.blob/x?sv=1&sig=abc%2F#a", f"https://a.blob/x?sv=1&sig={MASK}#a"),
        ("export HF_TOKEN=abc; python train.py", f"export HF_TOKEN={MASK}; python train.py"),
        ("cd /x && API_KEY='a b' python t.py", f"cd /x && API_KEY={MASK} python t.py"),
        ("python t.py --hf-token abc --lr 3", f"python t.py --hf-token {MASK} --lr 3"),
        ('exec t --password="a b" x', f"exec t --password={MASK} x"),
        ("login hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345 now", f"login {MASK} now"),
        ("x sk-proj-abcdefghijABCDEFGHIJ_1234-5", f"x {MASK}"),
    ],
)
def test_a_secret_inside_a_value_is_masked(value, shown):
    """A record is for all who may read the logs, whether the command is split into words or stands in one."""
    assert masked("CURL_ARGUMENTS", value) == shown
    assert masked_argv(["curl", "--header", value]) == ("curl", "--header", shown)
    assert masked_argv(["sh", "-c", value]) == ("sh", "-c", shown)


@pytest.mark.parametrize(
    "value",
    [
        "/usr/bin:/bin", "sorted(x, key=len, reverse=True)", "https://h/x?max_tokens=3&q=token", "3", "/home", "a@b:c",
        "python t.py --max-tokens 512 --token --lr 3", "PATH=/x:$PATH; LR=3", "C:\\x", "Accept: text/html",
        "max-tokens: 512", "/opt/token:/bin", "a: b",
        "runs/hf_transformers_on_eight_devices_2026", "sk-learn-baseline-with-many-words-2026",
    ],
)  # fmt: skip
def test_other_values_are_shown(value):
    assert masked("X", value) == value


def test_secrets_in_a_command_are_masked():
    """Values of options that look secret go, in both spellings, and those of variables; all else stays: how many tokens."""
    plain = ("--max-tokens", "512", "--tokenizer", "x", "--tokenizer=y", "--author", "me", "--max-tokens=9")
    given = (
        "train.py --api-token abc --password=x=y --key-file k --lr 3 -v a=b http://u:p@h --env=HF_TOKEN=abc K_KEY=abc"
    )
    shown = "train.py --api-token M --password=M --key-file M --lr 3 -v a=b http://M@h --env=HF_TOKEN=M K_KEY=M"
    assert masked_argv([*plain, *given.split()]) == (*plain, *shown.replace("M", MASK).split())
    assert masked_argv(["x", "--url=http://u:p@h/?x=y"]) == ("x", f"--url=http://{MASK}@h/?x=y")


def test_long_words_take_no_time():
    words = tuple(part * 20_000 for part in ("a=", "\n", "a", "?", "&a=", "A", 'A="', " --a '", " --a", "--a=", "A=-"))
    assert masked_argv(words) == words
