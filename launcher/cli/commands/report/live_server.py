"""Serves the page of a run that goes on: on this machine alone, to those who know its address, until the run is over."""

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
from launcher.logs.log_cursor import Place
from launcher.supervise.port_holder import reason_of

LOOPBACK = "127.0.0.1"
LOOK_S, UNWATCHED_LOOK_S = 1.0, 5.0  # between two looks at the run: for a page, and where nobody has one open
SHARE = 0.1  # of the time may be spent on looks
HOLD_S = 20.0  # how long a request waits for news
STALLED_S = 10.0  # for which a client may take or send nothing
MAX_CONNECTIONS = 64
MAX_PAGE_NAME = 40  # characters
ANSWER_S = 0.3  # after the end, for answers that are on their way
LINGER_S = 10.0  # after the end, for pages that have not been told of it
# By the last part of its address. Whatever a log or a name holds: the page loads nothing but these, and runs nothing else.
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
# Another name that leads here was given by somebody else's name server (DNS rebinding); the port may be a tunnel's.
_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE | re.ASCII)
_PATH = re.compile(r"/([^/]*)/([^/]*)")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def serve(view: LiveView, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until the run is over, and those who look at it have seen that; `announce` is told its address.

    `port`: 0 takes a free one. Raises UsageError where it cannot be had.
    """
    try:
        server = Server(view, port)
    except OSError as error:
        hint = "give another one, or leave --port out: a free one is taken then"
        raise UsageError(
            f"port {port} of {LOOPBACK} cannot be listened on: {reason_of(error, port)}", hint=hint
        ) from error
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
    """Listens on the loopback interface. Each connection has a thread, which ends with the process."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, view: LiveView, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.view = view
        self.token = secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._asked = threading.Event()
        self._pages: dict[str, float] = {}  # when each page that is open has asked last, by a name of its own

    def note_request(self, page: str) -> None:
        """Take note that a page asks for news."""
        self._pages[page] = time.monotonic()
        self._asked.set()

    def note_end(self, page: str) -> None:
        """Take note that a page has been told of the end."""
        self._pages.pop(page, None)

    @property
    def is_watched(self) -> bool:
        """Return whether somebody has a page open, as far as requests tell."""
        since_s = time.monotonic() - HOLD_S - LOOK_S
        for page, asked_s in tuple(self._pages.items()):
            if asked_s < since_s:
                self.note_end(page)
        return bool(self._pages)

    def pause(self, between_s: float) -> None:
        """Wait for so long; longer where nobody looks, but only until somebody does."""
        time.sleep(between_s)
        self._asked.clear()
        if not self.is_watched:
            self._asked.wait(UNWATCHED_LOOK_S)

    def linger(self) -> None:
        """Wait until those who look at the page have read how the run ended."""
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
        """Say nothing of a client that has gone, or takes nothing."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: Server
    connection: socket
    protocol_version = "HTTP/1.1"
    timeout = STALLED_S

    def do_GET(self) -> None:
        asked, _, query = self.path.partition("?")
        path, hosts = _PATH.fullmatch(asked), self.headers.get_all("Host", [])
        is_named_so = len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip())
        if not is_named_so or not path or not hmac.compare_digest(path[1].encode(), self.server.token.encode()):
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", b"Forbidden: take the address that tlaunch has printed.\n")
            return
        if path[2] in FILES:
            names, kind = FILES[path[2]]
            templates: Path = data_dir("templates")
            self._reply(HTTPStatus.OK, kind, b"".join((templates / name).read_bytes() for name in names))
        elif path[2] == "news":
            fields = {name: values[-1] for name, values in parse_qs(query).items()}
            page = fields.get("page", "")[:MAX_PAGE_NAME]
            self.server.note_request(page)
            news = self._news(fields)
            self._reply(HTTPStatus.OK, "application/json", json.dumps(news).encode())
            if news["over"]:
                self.server.note_end(page)
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"Not found\n")

    def _news(self, query: dict[str, str]) -> dict[str, Any]:
        """Return what has changed since the look that the client has seen last, once there is something."""
        view, deadline_s = self.server.view, time.monotonic() + HOLD_S
        seen, rank = _number(query.get("seen")) or 0, _number(query.get("rank"))
        place = Place.parse(query.get("place", ""))
        while True:
            is_over = view.over  # before the log is read: then nothing more is written to it
            number, parts = view.after(seen, each="each" in query)
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
        """Write nothing: the terminal is for what people asked for."""


def _number(text: str | None) -> int | None:
    return int(text) if text and _NUMBER.fullmatch(text) else None
