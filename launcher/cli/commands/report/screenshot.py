"""A page as a picture, made by whatever Chromium is installed: without a window, without network, and leaving nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import TlaunchError, UsageError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH = 1200  # pixels
TALLEST = 30_000  # pixels: what Chromium can be trusted with
PATIENCE_S = 60.0
MAX_PLACE = 107 - len("/tlaunch-report-xxxxxxxx/org.chromium.Chromium.xxxxxx/SingletonSocket")  # bytes
OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere
)
_MEASURE = "<script>document.documentElement.dataset.height = document.documentElement.scrollHeight</script>"
_HEIGHT = re.compile(r'<html[^>]* data-height="(\d+)"')


def find_browser() -> str:
    """The path of a Chromium.

    Raises:
        UsageError: there is none on PATH.
    """
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise UsageError(
        f"--png needs a Chromium, and PATH has none (looked for {', '.join(BROWSERS)})",
        hint="install one (`apt-get install chromium`), or write --html FILE, which every browser shows",
    )


def screenshot(page: str, policy: str) -> bytes:
    """The whole of `page` (HTML) as PNG, 1200 pixels wide. `policy` is the element of it that forbids scripts.

    Blocks for some seconds, for two minutes at most.

    Raises:
        UsageError: there is no Chromium, or the page is too long for a picture.
        TlaunchError: it failed, or took too long.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="tlaunch-report-", dir=_place(), ignore_cleanup_errors=True) as directory:
        aside = Path(directory)
        # Only this copy measures itself.
        measuring = page.replace(policy, "", 1).replace("</body>", f"{_MEASURE}</body>")
        height = _height(_run(browser, aside, measuring, "--dump-dom", f"--window-size={WIDTH},1000"))
        picture = aside / "page.png"
        _run(browser, aside, page, f"--screenshot={picture}", f"--window-size={WIDTH},{height}")
        try:
            return picture.read_bytes()
        except OSError as error:
            raise TlaunchError(f"{browser} made no picture: {error.strerror}") from error


def _place() -> str:
    """Where temporary files belong, or /tmp where Chromium's socket, below it, would have too long a name."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= MAX_PLACE else "/tmp"  # noqa: S108 - a directory of our own in it


def _height(document: str) -> int:
    found = _HEIGHT.search(document)
    if found is None:
        raise TlaunchError("the browser did not say how high the page is")
    if int(found[1]) > TALLEST:
        raise UsageError(
            f"the page is {int(found[1]):,} pixels high, too much for a picture",
            hint="--html has no limit; or take fewer runs at once",
        )
    return int(found[1])


def _run(browser: str, aside: Path, page: str, *options: str) -> str:
    """What it wrote to stdout."""
    file = aside / "page.html"
    file.write_text(page, encoding="utf-8")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    profile = f"--user-data-dir={aside / 'profile'}"
    homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR", "TMP", "TEMP"), str(aside))
    process = subprocess.Popen(
        [browser, *OPTIONS, *as_root, profile, *options, file.as_uri()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **homes},
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise TlaunchError(f"{browser} took more than {PATIENCE_S:g} s to show the page") from None
    finally:
        _end(process)
    if process.returncode != 0:
        words = stderr.decode(errors="replace").strip().splitlines()
        last = f": {words[-1]}" if words else ""
        raise TlaunchError(f"{browser} failed with {process.returncode}{last}")
    return stdout.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """And whatever it has started and left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
