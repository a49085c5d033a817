r"""Mask secrets in everything that is recorded or shown: variables, commands, exceptions, verdicts, reports.

Used by the hook of a failing rank, in the rank's own Python, and by all packages above `preload`.

| form                                          | masked                                                                |
|-----------------------------------------------|-----------------------------------------------------------------------|
| `NAME`, `--name`, `"name":`, `Name:`, `name=` | the value, if the name is secret (`is_secret`)                      |
| `scheme://user:password@host`                 | everything before the `@`                                             |
| `?name=value` of a URL                        | the value, including signatures (`sig`)                             |
| `Bearer ...`, `Basic ...`                     | the credentials, unless they are a plain word                         |
| `-u user:password`, `-p password`             | the password; ports, numbers, paths and plain words are shown         |
| `Server=x;Pwd=...;AccountKey=...`             | the values of secret names                                            |
| `hf_...`, `ghp_...`, `AKIA...`, `eyJ...`      | tokens whose first characters name their issuer                       |
| `-----BEGIN PRIVATE KEY-----`                 | the block                                                             |
| `['x', '-p', '...']`, `('X-Api-Key', '...')`  | as in a command, and the value of a header                            |
| `Invalid API key '...'`                       | the value, if it has letters and digits                               |
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MASK = "********"


def _unless_after(words: str) -> str:
    return "".join(f"(?<!_{word})" for word in words.split())


# A name is secret if one of its words is, or ends with, one of these (ACCESSTOKEN, PGPASSWORD). Parts of other words
# (tokenizer, author) do not count. Underscores separate words: HF_TOKEN and --hfToken become _HF_TOKEN_.
_SECRET_WORDS = re.compile(
    # Tokens of a text are not secret, nor are keys of a table.
    _unless_after("EOS BOS PAD SEP CLS UNK MASK START END STOP NEXT PER IMAGE SPECIAL MAX MIN NUM")
    + r"_[A-Z0-9]*TOKEN\d*_(?!(?:IDS?|TYPE|DROPOUT|EMBED[A-Z]*|LIMIT|COUNT|LEN|LENGTH|SIZE|PER|BUDGET)_)"
    r"|_(?:API|ACCESS|AUTH|REFRESH|BEARER|BOT)_?TOKENS_"
    r"|_[A-Z0-9]*(?:SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|COOKIE|WEBHOOK)S?\d*_"
    r"|_[A-Z0-9]*(?:API|ACCESS|AUTH|SECRET|PRIVATE|SSH|ACCOUNT|ENCRYPTION|SIGNING|LICENSE|MASTER|SESSION)KEYS?\d*_|"
    + _unless_after(
        "SORT PRIMARY FOREIGN CACHE GROUP JSON TEXT IMAGE LABEL INPUT OUTPUT QUERY DICT PUBLIC FEATURE DATA METRIC"
        " VOCAB MONITOR BEST TARGET SOURCE LOSS COLUMN INDEX VIDEO AUDIO"
    )
    + r"_KEYS?\d*_(?!(?:PADDING|VALUE|STATES?|DIM|MASK|SIZE|LEN|LENGTH|POINTS?)_)"
    r"|_(?:O?AUTH\d*|AUTHORIZATION|AUTHENTICATION)_"
    r"|_(?:PRIVATE|SIGNATURE|SALT|BEARER|JWT|CONNECTION_?STRING)\d*_|"
    + _unless_after("NUM MAX MIN")
    + r"_(?:PASS|PW|DSN|SAS|PAT)_$"
    r"|_(?!(?:EN)?COMPASS|BYPASS|SURPASS|TRESPASS|(?:OVER|UNDER|LOW|HIGH|BAND|ALL|ONE|TWO|SINGLE|MULTI|PRE)PASS)[A-Z0-9]+PASS\d*_$"
    r"|_(?!OLDPWD)[A-Z0-9]+PWD\d*_$|[^_]_PWD_$|" + _unless_after("XDG TERM ITERM") + r"_[A-Z]*SESS(?:ION)?_?ID_$"
)
_BETWEEN_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_NO_NAME = re.compile(r"(?:Error|Exception|Warning)$")  # the key in `KeyError: 'x'` has no value
_COUNT = re.compile(r"[-+]?\d{0,4}(?:\.\d*)?|true|false|none|null|yes|no", re.IGNORECASE)
_NEVER_COUNTS = re.compile("pass|pw|secret|phrase|api|private", re.IGNORECASE)
# Words with many meanings: in free text they name a secret only if the value looks like one.
_WEAK = frozenset(
    ["key", "keys", "token", "auth", "signature", "salt", "private", "pass", "pat", "pw", "cookie", "secret"]
)
_PASSWORDS = frozenset(("pass", "pw", "secret"))  # of these, quoted values are masked whatever they look like
_RANDOM = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=-]{12,}")
_CODE = re.compile(
    r"(?:str|bytes|int|bool|float|None|True|False|Any|Optional|Tensor)\b|[A-Za-z_][\w.]*[(\[]|[a-z_]+\.[a-z_]+"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]+")

_SCHEME = r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)"
# On one line only: a quote closed on a later line would hide the text between from all other forms.
_QUOTED = r"""[bBrRuU]?(?:\\+"(?:(?!\\+").)*\\+"|\\*"(?:[^"\\\n]|\\.)*"|\\*'(?:[^'\\\n]|\\.)*')"""
_UNQUOTED = r"""(?:[^\s;&|"']|[&|](?=[^\s&|=]*(?:[\s;]|$)))"""
_VALUE = rf"""(?P<value>(?:{_QUOTED}|{_UNQUOTED})+)"""
_URL_CREDENTIALS = re.compile(
    r"""(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)"""
    r"""(?:(?:[^\s/?#"'<>]|[?#](?![\w.-]+=))+|[^\s/:@"'<>]*:(?!\d*[/\s"'])[^\s@"'<>]{1,256})@"""
)
_AUTHORIZATION = re.compile(r"""\b(?P<before>(?P<scheme>Bearer|Basic)[ \t]+)(?P<value>[^\s"',;)\]}]+)""", re.IGNORECASE)
_PLAIN_WORD = re.compile(r"[A-Za-z]?[a-z]{0,18}[.:!?]*")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:(?:[^-]|-(?!----))*-----END [A-Z0-9 ]*-----"
    r"|(?:(?:\s|\\[rn])*[A-Za-z0-9+/=]{16,})+)"
)
_WEBHOOK = re.compile(
    r"(?P<before>hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot)[^\s\"'<>]+"
)
# Tokens with a prefix of their issuer: Hugging Face, OpenAI, GitHub, GitLab, Slack, Google, AWS, npm, PyPI, ...
_KNOWN_TOKEN = re.compile(
    r"""(?<![A-Za-z0-9])(?:
    (?:hf_|sk-(?:[a-z0-9]{1,9}-){0,2}|gh[pousr]_|github_pat_|gl[a-z]{2,4}-|npm_|pypi-|nvapi-|gsk_|r8_|dckr_pat_|dop_v1_
       |shpat_|whsec_|[sr]k_(?:live|test)_|hvs\.|GOCSPX-|SG\.|AGE-SECRET-KEY-)[A-Za-z0-9]{20}[\w.-]*
    |(?:xox[a-z]|xapp)-[\w-]{10,}|AIza[\w-]{20,}|ya29\.[\w.-]{16,}|A[KS]IA[A-Z0-9]{16}\b
    |github_pat_\w{20,}|glpat-[\w-]{20,}|pypi-[\w-]{20,}|sk-[a-z]{2,9}-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,}
    |eyJ[A-Za-z0-9_-]{5,}(?:\.[\w-]+){1,4}|eyJ[A-Za-z0-9_-]{20,}={0,2})""",
    re.ASCII | re.VERBOSE,
)
_USER = re.compile(
    r"""(?P<before>(?<!\S)(?:-u|-U|--(?:proxy-)?user(?:name|pwd)?)(?:=|[ \t]+)["']?(?P<user>[^\s:/"'=]+):)(?P<value>[^\s"']+)"""
)
_PASSWORD_OPTION = re.compile(
    rf"""(?P<before>(?<!\S)-(?P<letter>[pPaw])(?P<gap>[ \t]*))(?P<value>{_QUOTED}|[^\s"'-][^\s"']*)"""
)
_HEADER = re.compile(
    rf"^(?P<before>[ \t]*(?P<name>[A-Za-z][\w-]*)[ \t]*:[ \t]*(?:{_SCHEME}[ \t]+)?)(?P<value>\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_COOKIE = re.compile(r"""(?P<before>\b(?P<name>(?:Set-)?Cookie):[ \t]*)(?P<value>[^\n"']+)""", re.IGNORECASE)
_FIELD = re.compile(
    rf"""(?P<before>(?<![\w.-])(?P<name>[A-Za-z_][\w-]*)[ \t]?:[ \t]*(?:{_SCHEME}[ \t]+)?)(?P<value>{_QUOTED}|[^\s"',;/\\{{[][^\s"',;]*)""",
    re.IGNORECASE,
)
_MEMBER = re.compile(
    rf"""(?P<before>(?<!\\)(?P<quote>\\*["'])(?P<name>[\w.-]+)(?P=quote)\]?\s*(?::|=>?)(?!=)\s*)(?P<value>{_QUOTED}|[^\s,}}"'{{[]+)"""
)
_PARAMETER = re.compile(r"""(?P<before>[?&#](?P<name>[\w.-]{1,100})=)(?P<value>[^\s&#"']+)""")
_VARIABLE = re.compile(rf"""(?P<before>(?<![\w.-])(?P<name>[A-Z_][A-Z0-9_]*)=){_VALUE}""", re.ASCII)
_ASSIGNED = re.compile(
    rf"""(?P<before>(?<![\w.-])(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)(?P<gap>[ \t]*)=>?(?!=)[ \t]*){_VALUE}""", re.ASCII
)
_PWD = re.compile(r"""(?P<before>(?:^|;)[ \t]*(?!PWD=)(?i:pwd)=)(?P<value>[^\s;"'$`/~.][^\s;"']*)""", re.MULTILINE)
_OPTION = re.compile(rf"""(?P<before>(?<![^\s=])(?P<name>--?[A-Za-z][\w.-]*)(?:=|[ \t]+(?!-))){_VALUE}""", re.ASCII)
_PROXY = re.compile(r"""(?P<before>\b\w*proxy["']?[=:][ \t]*["']?)[^\s"'/@]+@""", re.IGNORECASE)
_LOGIN = re.compile(r"(?P<before>\blogin\s+\S+\s+password\s+)[^\s:=]\S*")  # of a .netrc
_ELEMENT = re.compile(r"(?P<before><(?P<name>[A-Za-z_][\w.-]*)>)(?P<value>[^<>\n]+)(?=</)")
_PHRASE = re.compile(
    r"""(?P<before>\b(?:password|passphrase|(?:api|access|secret)[ _-]?key|(?:access|auth|api)[ _-]?token)s?"""
    r"""(?:[ \t](?:is|was|provided))?:?[ \t]+)(?P<value>["'][^\s"']{6,}["']|[\w+/=-]{12,})""",
    re.IGNORECASE,
)
_LOOKS_RANDOM = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])")
# Commands and headers as Python prints them: ['mysql', '-p...'], ('X-Api-Key', '...').
_LISTED = r"""b?(?:'(?:[^'\\\n]|\\.){0,2000}'|"(?:[^"\\\n]|\\.){0,2000}")"""
_LIST = re.compile(rf"{_LISTED}(?:,\s*{_LISTED})+")
_ITEM = re.compile(_LISTED)
_RESCANNED_CHARS = 500  # limit for a shown value, which keeps the time linear in the text
_SIGNATURE = "sig"  # in a URL that gives access to whoever holds it
_ASSIGNMENT = re.compile(r"(?P<name>[\w.-]+)=")
# Programs with a one-letter password option, and values of -p that are not passwords.
_DATABASES = re.compile(r"(?:mysql|mariadb|mongo)[\w-]*|sshpass|redis-cli|ldap\w+|sqlcmd")
_NUMBERS = re.compile(r"[-+\d.,:e/]+(?:tcp|udp)?")
_SHORT = ("-p", "-P", "-a", "-w")
_ORDINARY = re.compile(r".{1,5}|.*[/\\=].*|.*\.[a-z]+\d*|(?:[A-Z]?[a-z]+[_-]?)+\d{0,3}[a-z]?(?:[_-].*)?|[A-Z_-]+")


def is_secret(name: str) -> bool:
    """Return True if the value of a variable, option or header with this name must be masked.

    >>> is_secret("HF_TOKEN"), is_secret("--apiKey"), is_secret("--max-tokens"), is_secret("TOKENIZERS_PARALLELISM")
    (True, True, False, False)
    """
    if _NO_NAME.search(name):
        return False
    return _SECRET_WORDS.search(f"_{_BETWEEN_WORDS.sub('_', name).upper().strip('_')}_") is not None


def masked(name: str, value: str) -> str:
    """Mask the whole value if `name` is secret, else mask only the secrets inside the value.

    >>> masked("HF_TOKEN", "abc"), masked("PROXY", "http://me:pw@host:80"), masked("", "X-Api-Key: abc")
    ('********', 'http://********@host:80', 'X-Api-Key: ********')
    """
    if value and _hides(name, value):
        return MASK
    if "@" in value and "://" not in value and name.upper().endswith("PROXY"):
        return f"{MASK}@{value.rpartition('@')[2]}"
    return masked_text(value)


def masked_text(text: str) -> str:
    """Mask the secrets in a text, such as a message, a traceback or a shell command.

    >>> masked_text("cannot open postgres://me:pw@db/x"), masked_text("KeyError: 'encoder'; 900 tokens/s")
    ('cannot open postgres://********@db/x', "KeyError: 'encoder'; 900 tokens/s")
    """
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    if "://" in text:
        text = _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
    text = _WEBHOOK.sub(rf"\g<before>{MASK}", text)
    text = _AUTHORIZATION.sub(_masked_credentials, text)
    text = _LIST.sub(_masked_list, text)
    text = _masked_values(_MEMBER, text)
    if ":" in text:
        for named in (_COOKIE, _HEADER, _FIELD):
            text = _masked_values(named, text)
    if "=" in text:
        text = _PWD.sub(rf"\g<before>{MASK}", text)
        for named in (_PARAMETER, _VARIABLE, _ASSIGNED):
            text = _masked_values(named, text)
    if "-" in text:
        text = _masked_passwords(_masked_values(_OPTION, text))
    if "@" in text:
        text = _PROXY.sub(rf"\g<before>{MASK}@", text)
    if "</" in text:
        text = _masked_values(_ELEMENT, text)
    text = _PHRASE.sub(_masked_phrase, _LOGIN.sub(rf"\g<before>{MASK}", text))
    return _KNOWN_TOKEN.sub(MASK, text)


def masked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Mask the secrets in the arguments of a command, including the values of secret options.

    >>> masked_argv(["train", "--api-token", "abc", "--password=x", "--env=API_KEY=y", "--max-tokens", "3"])
    ('train', '--api-token', '********', '--password=********', '--env=API_KEY=********', '--max-tokens', '3')
    """
    shown: list[str] = []
    letters = _password_letters(argv) if any(word[:2] in _SHORT for word in argv) else ""
    for before, word in zip(("", *argv), argv, strict=False):
        is_value = before.startswith("-") and "=" not in before and not word.startswith("-")
        if word and is_value and (_hides(before, word) or _is_password(before[1:], word, letters)):
            shown.append(MASK)
        elif is_value and (found := _USER.match(f"{before} {word}")) and _is_login(found):
            shown.append(f"{found['user']}:{MASK}")
        elif word[:2] in _SHORT and word[2:] and _is_attached(word[1], word[2:], letters):
            shown.append(word[:2] + MASK)
        else:
            shown.append(_masked_word(word))
    return tuple(shown)


def _masked_word(word: str) -> str:
    """Mask the value in an argument that names a secret, such as --password=x, TOKEN=x or --env=TOKEN=x."""
    start = 0
    while match := _ASSIGNMENT.match(word, start):
        start = match.end()
        if _hides(match["name"], word[start:]):
            return word[:start] + (MASK if word[start:] else "")
    return masked_text(word)


def _hides(name: str, value: str) -> bool:
    """Return True if the value of `name` must be masked. Counts and flags are not masked."""
    return is_secret(name) and (_NEVER_COUNTS.search(name) is not None or not _COUNT.fullmatch(value))


def _masked_values(pattern: re.Pattern[str], text: str) -> str:
    """Mask the values of secret names in a text. Search other values, too: in `Error: password: x`, x is a secret."""
    pieces, done, start = [], 0, 0
    while match := pattern.search(text, start):
        shown = _masked_value(match)
        is_rescanned = shown == match[0] and len(match["value"]) <= _RESCANNED_CHARS
        start = match.start("value") if is_rescanned else match.end()
        if shown != match[0]:
            pieces += [text[done : match.start()], shown]
            done = start
    return "".join((*pieces, text[done:]))


def _masked_list(match: re.Match[str]) -> str:
    items = list(_ITEM.finditer(match[0]))
    words = [item[0].lstrip("b")[1:-1] for item in items]
    shown = list(masked_argv(words))
    if len(words) == 2 and _hides(*words) and (_RANDOM if words[0].lower() in _WEAK else _LOOKS_RANDOM).match(words[1]):
        shown[1] = MASK
    pieces, done = [], 0
    for item, word, masked_word in zip(items, words, shown, strict=True):
        if word != masked_word:
            pieces += [match[0][done : item.end() - len(word) - 1], masked_word]
            done = item.end() - 1
    return "".join((*pieces, match[0][done:]))


def _masked_phrase(match: re.Match[str]) -> str:
    """Mask the value in `Invalid API key '...'`, but leave `password "of the user"` unchanged."""
    return match["before"] + MASK if _LOOKS_RANDOM.match(match["value"].strip("\"'")) else match[0]


def _masked_value(match: re.Match[str]) -> str:
    pattern, value = match.re, match["value"]
    if not _is_hidden_value(match):
        return match[0]
    # Brackets belong to the surrounding text.
    kept = value.rstrip(")]}>,.") if pattern in {_FIELD, _ASSIGNED} else value
    return match["before"] + MASK + (value[len(kept) :] if kept else "")


def _is_hidden_value(match: re.Match[str]) -> bool:
    pattern, name, value = match.re, match["name"], match["value"]
    bare = value.strip("\\\"'")
    if pattern is _PARAMETER and name.lower() == _SIGNATURE:
        return True
    if not bare or not _hides(name, bare):
        return False
    if pattern in {_FIELD, _ASSIGNED} and bare == value and _CODE.match(value):
        return False
    if pattern in {_HEADER, _FIELD}:
        return name.lower() not in _WEAK or _RANDOM.match(bare) is not None
    return pattern is not _ASSIGNED or _assigns(name, value, gap=match["gap"])


def _assigns(name: str, value: str, *, gap: str) -> bool:
    """Return True if a text assigns a secret, as in `password=x`, but not for Python code such as `key=len`."""
    is_quoted = value[0] in "\\\"'"
    if name.lower() in _WEAK:
        if is_quoted and not gap and name.lower() in _PASSWORDS:
            return True
        return name != "key" and (is_quoted or not gap) and _RANDOM.match(value.strip("\"'")) is not None
    if value.rstrip("),") == name:
        return False
    return not gap or is_quoted or _IDENTIFIER.fullmatch(value) is None


def _masked_credentials(match: re.Match[str]) -> str:
    """Mask the value in `Bearer ...`, but leave "basic training" unchanged."""
    value = match["value"]
    if match["scheme"].lower() == "basic":
        is_plain = not re.search(r"\d|=$", value) or (len(value) < 12 and not value.endswith("="))
    else:
        is_plain = _PLAIN_WORD.fullmatch(value) is not None
    return match[0] if is_plain else match["before"] + MASK


def _masked_passwords(line: str) -> str:
    line = _USER.sub(lambda found: found["before"] + MASK if _is_login(found) else found[0], line)
    if not any(option in line for option in _SHORT):
        return line
    letters = _password_letters(line.split())

    def shown(found: re.Match[str]) -> str:
        decide = _is_password if found["gap"] else _is_attached
        return found["before"] + MASK if decide(found["letter"], found["value"], letters) else found[0]

    return _PASSWORD_OPTION.sub(shown, line)


def _is_login(found: re.Match[str]) -> bool:
    """Return True if a match has the form user:password rather than uid:gid or host:port."""
    user = found["user"]
    return not (found["value"].isdecimal() and (user.isdecimal() or "." in user or user == "localhost"))


def _password_letters(words: Iterable[str]) -> str:
    """Return the letters of the one-letter options that take a password in this command."""
    before = letters = ""
    for word in words:
        if _DATABASES.fullmatch(word.rpartition("/")[2].lstrip("\"'(")):
            return "pPaw"
        if word in {"-u", "-U", "--user", "--username"} or word.startswith(("--user=", "--username=")):
            program = before.rpartition("/")[2]
            if not program.startswith("python") and program != "sudo":  # its -u does not take a database user
                letters = "p"
        before = word
    return letters


def _is_password(letter: str, value: str, letters: str) -> bool:
    """Return True if the value of an option such as `-p` looks like a password."""
    value = value.strip("\"'")
    if letter in letters and len(letter) == 1:
        return _NUMBERS.fullmatch(value) is None
    return letter == "p" and not _NUMBERS.fullmatch(value) and not _ORDINARY.fullmatch(value) and value != MASK


def _is_attached(letter: str, value: str, letters: str) -> bool:
    return letters == "pPaw" and letter == "p" and _NUMBERS.fullmatch(value) is None
