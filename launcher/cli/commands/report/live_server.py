"""Serve the live page of a run on the loopback interface until the run is over. The address contains a secret token."""

from __future__ import annotations

import hmac
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import socket
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs

from launcher.cli.commands.report.live import LiveView
from launcher.core.errors import UsageError
from launcher.core.resources import data_dir
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import Place
from launcher.supervise.port import reason_of

LOOPBACK = "127.0.0.1"
LOOK_S, UNWATCHED_LOOK_S = 1.0, 5.0  # between two updates: with an open page, and without
SHARE = 0.1  # maximum share of time spent on updates
HOLD_S = 20.0  # maximum wait of a request for news
STALLED_S = 10.0  # timeout for a client that sends or receives nothing
MAX_CONNECTIONS = 64
MAX_PAGE_NAME = 40  # characters
ANSWER_S = 0.3  # after the end, for pending answers
LINGER_S = 10.0  # after the end, for pages that have not shown it yet
# The files by the last part of their address. The page loads and runs only these, whatever a log or a name contains.
FILES = {
    "": (("live.html",), "text/html"),
    "live.css": (("report.css", "live.css"), "text/css"),
    "live.js": (("live.js",), "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# Other host names indicate DNS rebinding, and are refused. The port may be a tunnel's.
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE | re.ASCII)
_PATH = re.compile(r"/([^/]*)/([^/]*)")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def serve(run_dir: RunDir, progress_regex: str | None, port: int, announce: Callable[[str], None]) -> None:
    """Serve the live page of a run until the run is over. Calls `announce` with the page's address.

    With `port` 0, uses a free port. Raises UsageError if the port cannot be used.
    """
    view = LiveView(run_dir, progress_regex)
    try:
        server = Server(view, port)
    except OSError as error:
        hint = "use another port, or leave --port out to use a free one"
        raise UsageError(f"cannot listen on port {port} of {LOOPBACK}: {reason_of(error, port)}", hint=hint) from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            announce(f"http://{LOOPBACK}:{server.server_address[1]}/{server.token}/")
            while True:
                begun_s = time.monotonic()
                if not view.look().lives:
                    break
                server.pause(max(LOOK_S, (time.monotonic() - begun_s) / SHARE))
            server.linger()
        finally:
            server.shutdown()


class Server(ThreadingTCPServer):
    """An HTTP server on the loopback interface, with a daemon thread for each connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, view: LiveView, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.view = view
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._asked = threading.Event()
        self._pages: dict[str, float] = {}  # ID of each open page -> time of its last request

    def note_request(self, page: str) -> None:
        """Record that an open page has sent a request."""
        self._pages[page] = time.monotonic()
        self._asked.set()

    def note_end(self, page: str) -> None:
        """Record that the final state of the run was sent to a page."""
        self._pages.pop(page, None)

    @property
    def is_watched(self) -> bool:
        """True if a page is open, judging by recent requests."""
        since_s = time.monotonic() - HOLD_S - LOOK_S
        for page, asked_s in tuple(self._pages.items()):
            if asked_s < since_s:
                self.note_end(page)
        return bool(self._pages)

    def pause(self, between_s: float) -> None:
        """Wait `between_s` seconds between two updates, or longer while no page is open."""
        time.sleep(between_s)
        self._asked.clear()
        if not self.is_watched:
            self._asked.wait(UNWATCHED_LOOK_S)

    def linger(self) -> None:
        """Wait until open pages have received the final state of the run, for at most LINGER_S seconds."""
        until_s = time.monotonic() + LINGER_S
        while self.is_watched and time.monotonic() < until_s:
            time.sleep(0.05)
        time.sleep(ANSWER_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnected or stalled."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    connection: socket
    protocol_version = "HTTP/1.1"
    timeout = STALLED_S

    def do_GET(self) -> None:
        asked, _, query = self.path.partition("?")
        path, hosts = _PATH.fullmatch(asked), self.headers.get_all("Host", [])
        is_named_so = len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip())
        if not is_named_so or not path or not hmac.compare_digest(path[1].encode(), self.server.token.encode()):
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", b"Forbidden: use the address that tlaunch printed.\n")
            return
        if path[2] in FILES:
            names, kind = FILES[path[2]]
            templates: Path = data_dir("templates")
            self._reply(HTTPStatus.OK, kind, b"".join((templates / name).read_bytes() for name in names))
        elif path[2] == "news":
            fields = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
            page = fields.get("page", "")[:MAX_PAGE_NAME]
            self.server.note_request(page)
            news = self._news(fields)
            self._reply(HTTPStatus.OK, "application/json", json.dumps(news).encode())
            if news["over"]:
                self.server.note_end(page)
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"Not found\n")

    def _news(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the changes since the client's last update. If there are none, first wait up to HOLD_S seconds."""
        view, deadline_s = self.server.view, time.monotonic() + HOLD_S
        seen, rank = _number(query.get("seen")) or 0, _number(query.get("rank"))
        place = Place.parse(query.get("place", ""))
        while True:
            is_over = view.over  # checked before the log is read, so that the log is complete then
            number, parts = view.after(seen, each="each" in query)
            if "shown" in query:  # the user has chosen no rank
                rank = view.log_rank
                place = place if _number(query["shown"]) == rank else None
            log = None
            if rank is not None and rank < view.rank_count:
                log = view.log_after(rank, place)
            has_come = log and (log["lines"] or log["anew"] or log["rest_bytes"] != _number(query.get("rest_bytes")))
            left_s = deadline_s - time.monotonic()
            if parts or has_come or is_over or left_s <= 0:
                return {"number": number, "parts": parts, "log": log, "over": is_over}
            view.wait(number, left_s)

    def _reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "tlaunch"

    def log_message(self, *_: Any) -> None:
        """Do not log requests to the terminal."""


def _number(text: str | None) -> int | None:
    return int(text) if text and _NUMBER.fullmatch(text) else None
