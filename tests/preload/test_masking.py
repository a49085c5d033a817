"""What may be shown of an environment, a command, an exception."""

import time

import pytest

from launcher.preload.masking import MASK, is_secret, masked, masked_argv, masked_text

SECRET_NAMES = (
    "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "DB_PASSWORD", "MYSQL_PWD", "PASSPHRASE", "GOOGLE_CREDENTIALS",
    "PGPASSWORD", "ACCESSTOKEN", "APIKEY", "--hfToken", "clientSecret", "OPENAI_API_KEYS", "API_TOKENS", "SSH_AUTH_SOCK",
    "OAUTH2", "TOKEN2", "X-Api-Key", "Authorization", "Cookie", "SENTRY_DSN", "SMTP_PASS", "AZURE_SAS", "GITHUB_PAT",
    "DBPASS", "SSHPASS", "MYPWD", "PROXY_USERPWD", "CURLOPT_USERPWD", "SESSIONID", "PHPSESSID", "accountKey", "ROOTPASS2",
    "CONNECTION_STRING", "SLACK_WEBHOOK_URL", "JWT", "PRIVATE_REPO", "db.password", "SECRETS", "auth", "--key-file",
)  # fmt: skip
OTHER_NAMES = (
    "PATH", "PWD", "OLDPWD", "RANK", "--max-tokens", "--tokenizer", "TOKENIZERS_PARALLELISM", "num_tokens_per_batch",
    "--author", "AUTHORS", "KEYBOARD", "MONKEY", "--pad-token-id", "eos_token", "--mask-token", "XAUTHORITY", "COMPASS", "--bypass",
    "--passes", "passthrough", "num_passes", "LOWPASS", "TRESPASS", "XDG_SESSION_ID", "SESSION_MANAGER", "num_key_value_heads",
    "key_padding_mask", "--json-keys", "--text-key", "token_type_ids", "--token-dropout", "KeyError", "AuthenticationError",
    "PATTERN", "SALTED", "BYPASSED", "PASS_THROUGH", "SASL", "SIGNATURES_OF_LIFE", "",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_values_whose_names_look_secret_are_masked(name):
    assert masked(name, "hunter2-and-more") == MASK


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_parts_of_words_say_nothing(name):
    assert not is_secret(name)
    assert masked(name, "512") == "512"


@pytest.mark.parametrize(("value", "shown"), [
    # In headers and in JSON, what stands after a secret's name, and nothing else of them.
    ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
    ("authorization: bearer abc.def", f"authorization: bearer {MASK}"),
    ("Authorization: abc def", f"Authorization: {MASK}"),
    ("X-Api-Key: abc", f"X-Api-Key: {MASK}"), ("X-Api-Key:abc", f"X-Api-Key:{MASK}"),
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
])  # fmt: skip
def test_a_secret_inside_a_value_is_masked(value, shown):
    assert masked("CURL_ARGUMENTS", value) == shown
    assert masked_argv(["curl", "--header", value]) == ("curl", "--header", shown)
    assert masked_argv(["sh", "-c", value]) == ("sh", "-c", shown)


def test_secrets_in_a_command_are_masked():
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


# Each holds a PLAIN that nobody may see.
FORMS = (
    "postgres://me:PLAIN@db/x refused", "http://u:p/PLAIN@host/x", "postgres://u:p#PLAIN@h/db", "redis://:PLAIN@h:6379/0",
    "Authorization: Bearer PLAIN2", "refused, Authorization: Token PLAIN", "Authorization: Basic dXNlcjpQTEFJTgPLAIN==",
    "headers={'Authorization': 'Token PLAIN'}", 'curl -H "X-Api-Key: PLAIN" h', "a request failed, Set-Cookie: sid=PLAIN; b=PLAIN",
    "Server=x;Pwd=PLAIN;Uid=u", "Pwd=PLAIN;Server=x", "AccountName=x;AccountKey=PLAIN==;EndpointSuffix=core",
    "//registry.npmjs.org/:_authToken=PLAIN", "host=h user=u password=PLAIN dbname=x", "connect(host='h', password='PLAIN')",
    'password = "PLAIN"', "aws_secret_access_key = wJalrXUtnFEMI/K7/PLAIN", "login failed (user: x, password: PLAIN)",
    "invalid token: a1b2c3d4PLAIN00", r'{"api_key": "a\"PLAIN", "lr": 1}', r'{\"password\": \"PLAIN\"}',
    "https://h/x?sig=PLAIN&y=2", "https://h/x#access_token=PLAIN", "user=x&password=PLAIN&lang=z",
    "https://hooks.slack.com/services/T0/B0/PLAIN", "https://api.telegram.org/bot12:PLAIN/send",
    "hf_PLAIN3aaaaaaaaaaaaaaaaaaaa", "xoxb-1234567890-PLAINabcdefghij", "AIzaPLAIN000000000000000000000000000000",
    "eyJhbGciOiJIUzI1NiJ9.eyPLAIN.PLAIN", "eyJhPLAIN00000000000000000000", "npm_PLAIN0123456789012345678901234567890",
    "pypi-AgEIcHlwaS5vcmcPLAIN01234567890123", "glpat-PLAIN_abcdefghijklmnop", "github_pat_11ABCDEFG0PLAIN123456_abcdef",
    "ghp_PLAIN012345678901234567890123456789", "sk-ant-api03-PLAIN0123456789012345678901", "AKIAPLAIN01234567890",
    "ya29.PLAINabcdefghijklmnop", "SSHPASS=PLAIN x", "PASSWORD=-PLAIN x", 'DB_PASSWORD=abc"PLAIN" x', "export MYPWD=PLAIN",
    "curl -u user:PLAIN http://x", "curl --proxy-user me:PLAIN h", "sshpass -p PLAIN ssh h", "mysql -uroot -pPLAIN db",
    "docker login -u me -p PLAIN registry", "redis-cli -h h -a PLAIN ping", "train -p PLAIN09x", "x --password PLAIN",
    "-----BEGIN RSA PRIVATE KEY-----\nPLAIN\n-----END RSA PRIVATE KEY-----", r"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhPLAIN",
    # A name in a value that is shown: of an exception, a log line, an assignment, or a quote that a later line closes.
    "RuntimeError: password: PLAIN", "10:00:00 ERROR login: api_key: PLAIN", 'cmd="login password=PLAIN"', "args=--password PLAIN",
    'raise ValueError(f"password={x}")\nValueError: password=PLAIN\n\nraise ValueError("y")',
    # What `subprocess` says of a command, and other lists of Python.
    "Command '['mysql', '-uroot', '-pPLAIN']' returned non-zero exit status 1.", "['cli', '--password', 'PLAIN']",
    "['curl', '-u', 'me:PLAIN', 'h']", "['cli', '--api-key=PLAIN']", "['sshpass', '-p', 'PLAIN', 'ssh', 'h'] timed out",
    "[('X-Api-Key', 'PLAIN1')]", "{b'password': b'PLAIN'}", "{'api_key': b'PLAIN'}", "os.environ['HF_TOKEN'] = 'PLAIN'",
    "sshpass -p'PLAIN' ssh h", "https_proxy=u:PLAIN@proxy:3128", "machine h login me password PLAIN", "<password>PLAIN</password>",
    "cannot parse --s3.secret-key=PLAIN", "cannot parse --logger.api_key PLAIN", "Config(host='h', secret='PLAIN')", "connect(pw='PLAIN')",
    'token = "PLAIN0123456789ab"', "password => PLAIN1", "Invalid API key 'PLAIN1'",
    "Incorrect API key provided: PLAIN0123456", 'the password is "PLAIN1"',
)  # fmt: skip
# In none of these is a secret.
CONTROLS = (
    "--passes 3", "TOKENIZER=bert", "900 tokens/s", "-p 8080", "docker run -u 1000:1000 -p 8080:80 x", "MONKEY=1", "--num-tokens 5",
    "/home/me/token/x.py", "sha256:" + "deadbeef" * 8, "passthrough", "mkdir -p out/dir", "mkdir -p out && python t.py",
    "srun -p gpu python t.py", "-p a100", "-p resnet50", "-p gpu-long", "-p bf16", "python -u train.py -p gpu", "sudo -u me srun -p gpu x",
    "KeyError: 'encoder.layer'", "KeyError: encoder", 'Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "a"',
    "Unexpected key: encoder.layers.0.weight", "unexpected token: foo", "Basic training done", "basic block of ResNet50",
    "Bearer token missing", "--num-key-value-heads 8", "attn(q, k, v, key_padding_mask=mask)", "login(password=password)",
    "def f(token: str, password: str = None):", "password = args.password", "sorted(x, key=len, reverse=True)", "key = cache[key]",
    "PWD=/home/me", "pwd=$(pwd); cd x", "XDG_SESSION_ID=3", "https://h/x?email=a@b", "http://host:80/a@b", "git@github.com:o/r.git",
    "repo/image:tag@sha256:abc", "key: value", "step 5 loss 4.09 tokens/s 1000", "--use-auth-token true",
    "-----BEGIN CERTIFICATE-----", "No such file or directory: '/x/token'", "raise KeyError(key)", "Secret Santa",
    "['password', 'token', 'label']", "('api_key', 'model')", "Command '['mkdir', '-p', 'out/dir']' returned", "<s>hello</s>",
    'the password of "user1"', "unexpected keyword argument 'password'", "the API key is missing", "columns=['token', 'x1']",
    "--monitor-key val_loss", "--model.tokenizer bert", "add(token='<pad>')", 'token = "<s>"', "pass = 'train'",
    "loss >= 3", "a => b", "error: step: 5", 'cmd="login user=me"',
    "/usr/bin:/bin", "https://h/x?max_tokens=3&q=token", "3", "/home", "a@b:c", "python t.py --max-tokens 512 --token --lr 3",
    "PATH=/x:$PATH; LR=3", "C:\\x", "Accept: text/html", "max-tokens: 512", "/opt/token:/bin", "a: b",
    "runs/hf_transformers_on_eight_devices_2026", "sk-learn-baseline-with-many-words-2026",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_no_form_of_a_secret_is_shown(text):
    shown = (masked_text(text), masked("X", text), masked_argv(["sh", "-c", text])[2], masked_argv([text])[0])
    assert all("PLAIN" not in one and MASK in one for one in shown), shown


@pytest.mark.parametrize("command", [
    "curl -u user:PLAIN h", "sshpass -p PLAIN x", "mysql -uroot -pPLAIN db", "podman login -u me -p PLAIN r", "x --dsn PLAIN",
    "redis-cli -a PLAIN ping", "x --env SSHPASS=PLAIN", "x -p PLAIN09x", "x --user=me:PLAIN", "x --password PLAIN",
])  # fmt: skip
def test_passwords_that_are_words_of_a_command_are_masked(command):
    shown = masked_argv(command.split())
    assert "PLAIN" not in " ".join(shown)
    assert len(shown) == len(command.split())


@pytest.mark.parametrize("text", CONTROLS)
def test_text_without_secrets_is_shown(text):
    assert masked_text(text) == masked("X", text) == text
    assert masked_argv(["sh", "-c", text])[2] == text
    if "key=len" not in text:  # a word `key=len` names a key
        assert masked_argv(text.split()) == tuple(text.split())


@pytest.mark.parametrize("part", [
    "password=", "password:", "Bearer ", "a://a:", "://", "-----BEGIN PRIVATE KEY-----", "eyJa.", "-u a:", ";pwd=", "mysql -p", '"a":',
    "a.", "'a',", "'\\", "a=", "<a>", "password is ", "Cookie:", "\\", '\\"', "a: ", "-p", "&|", "x@",
])  # fmt: skip
def test_the_time_is_bounded(part):
    """Linear in the length: a traceback of a failing rank is of any form."""
    before_s = time.process_time()
    masked_text(part * 20_000)
    assert time.process_time() - before_s < 5
