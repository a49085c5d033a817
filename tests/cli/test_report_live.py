"""`tlaunch report --live`: what is served, to whom and for how long, and the page in a real browser."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import psutil
import pytest

from launcher.cli.commands.report.charts import Chart, Series
from launcher.cli.commands.report.live import MAX_BUCKETS, SIDE, LiveView, drawn, thinned
from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, Judged, RankEnded, RankStarted
from launcher.core.heartbeat import Beat, beat
from launcher.core.machine.proc import identify
from launcher.core.verdict import Confidence, Verdict
from tests.browser import browser, found
from tests.programs import acted_run

from .conftest import PATIENCE_S, PROGRAMS


class Served:
    """A page that is served by a process of its own."""

    def __init__(self, process):
        self.process = process
        self.address = process.stdout.readline().decode().strip()
        parts = urlsplit(self.address)
        self.port, self.path = parts.port, parts.path

    def get(self, path, **headers):
        """Status, headers and body of the answer; `path` as it is, from the root."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers, body

    def news(self, query="seen=0"):
        status, _, body = self.get(f"{self.path}news?{query}")
        assert status == 200, body
        return json.loads(body)


def serve(launcher, *options):
    return Served(launcher.start("report", "--live", *options, stdout=subprocess.PIPE))


@contextmanager
def acted(launcher, *options):
    """A page of a run that two sleeping processes play."""
    with acted_run.playing(launcher.runs / "a") as process:
        served = serve(launcher, "a", *options)
        yield served, acted_run.RunDir(launcher.runs / "a"), process
        served.process.send_signal(signal.SIGINT)
        served.process.wait(PATIENCE_S)


# --- who gets an answer, and to what ---


def test_it_listens_on_the_loopback_interface_alone(launcher):
    with acted(launcher) as (served, _, _):
        sockets = psutil.Process(served.process.pid).net_connections()
        listening = {each.laddr for each in sockets if each.status == psutil.CONN_LISTEN}
        assert listening == {("127.0.0.1", served.port)}
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", served.address)
        done = launcher.run("report", "--live", "a", "--port", served.port, code=2)
        assert (f"port {served.port} of 127.0.0.1" in done.stderr, "hint: " in done.stderr) == (True, True)


def test_nothing_is_told_without_the_token_or_by_another_name(launcher):
    with acted(launcher) as (served, _, _):
        other = served.path.replace(served.path[1], "x" if served.path[1] != "x" else "y", 1)
        paths = ("/", "/news", "//", "/x/", other, served.path[:-1], served.path.upper() + "x", "/%00/news", "/%ff/")
        for path in paths:
            assert served.get(path)[::2] == (403, b"Forbidden: use the address that tlaunch printed.\n")
        hosts = ("evil.example", f"evil.example:{served.port}", "127.0.0.1.evil.example", "0.0.0.0", "", "127.0.0.1:x")
        for host in hosts:
            assert served.get(served.path, Host=host)[0] == 403
        for host in (f"localhost:{served.port}", "127.0.0.1", "localhost:9000"):  # another port: that of a tunnel
            assert served.get(served.path, Host=host)[0] == 200


def test_nothing_but_the_page_and_its_news_is_served_and_they_load_nothing_else(launcher):
    with acted(launcher) as (served, _, _):
        inside = ("run.json", "live.html", "report.css", "device0/train.log", "news/")
        for name in (*inside, "../run.json", "..%2frun.json", "/etc/passwd"):
            assert served.get(served.path + name)[0] in {403, 404}
        for query in ("seen=0&rank=2", "seen=0&rank=-1", "seen=0&rank=..", "seen=x&rank=9999999999", "rank=0x1"):
            assert served.news(query)["log"] is None
        for name in ("", "live.css", "live.js", "news?seen=0"):
            status, headers, body = served.get(served.path + name)
            policy = headers["Content-Security-Policy"]
            assert (status, policy.startswith("default-src 'none'; ")) == (200, True)
            assert "unsafe" not in policy
            assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
            assert not re.search(rb"(src|href|url|import)\W+https?:", body)


# --- news ---


def test_news_are_what_has_changed_since_they_were_read(launcher):
    with acted(launcher) as (served, run_dir, _):
        run_dir.train_log(1).write_text("one\ntw")
        news = served.news("seen=0&rank=1&place=&rest_bytes=")
        assert news["parts"]["run"]["state"] == "running"
        assert news["parts"]["group order"] == ["group 0"]
        log = news["log"]
        assert (log["lines"], log["rest"], log["anew"]) == (["one"], "tw", True)
        with run_dir.train_log(1).open("a") as file:
            file.write("o\n")
        again = served.news(f"seen={news['number']}&rank=1&place={log['place']}&rest_bytes={log['rest_bytes']}")
        assert (again["log"]["lines"], again["log"]["anew"]) == (["two"], False)
        assert not {"columns", "group order", "charts"} & again["parts"].keys()
        beat({"TLAUNCH_HEARTBEAT_FILE": str(run_dir.heartbeat(0))}, Beat(step=4711))
        while "rank 0" not in again["parts"] or "4711" not in again["parts"]["rank 0"]["cells"]:
            again = served.news(f"seen={again['number']}&each=1")


def test_until_a_rank_is_chosen_the_log_is_that_of_the_failed_rank_or_of_the_first(launcher):
    with acted(launcher) as (served, run_dir, _):
        for rank in range(2):
            run_dir.train_log(rank).write_text(f"of rank {rank}\n")
        first = served.news("seen=0&shown=&place=")
        assert (first["log"]["rank"], first["log"]["lines"]) == (0, ["of rank 0"])
        acted_run.append(run_dir, Judged(Verdict(1, Confidence.CERTAIN, "it failed", ())))
        news = first
        while news["log"]["rank"] == 0:
            news = served.news(f"seen={news['number']}&shown=0&place={first['log']['place']}&rest_bytes=0")
        assert (news["log"]["rank"], news["log"]["lines"]) == (1, ["of rank 1"])
        assert served.news("seen=0&rank=0")["log"]["rank"] == 0


def test_clients_that_stall_or_go_hold_up_nobody(launcher):
    with acted(launcher) as (served, _, _):
        stalled = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(9)]
        for each in stalled[:3]:
            request = f"GET {served.path}news?seen=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            each.sendall(request.encode() * 50)  # and reads nothing
        for each in stalled[3:6]:
            each.sendall(b"GET /")
        number = served.news()["number"]
        for _ in range(2):
            news = served.news(f"seen={number}")
            assert news["number"] > number
            number = news["number"]
        for each in stalled:
            each.close()
        assert served.news()["parts"]["run"]["state"] == "running"


def test_it_ends_with_the_run_and_tells_that(launcher):
    with acted(launcher) as (served, _, run):
        number = served.news()["number"]
        run.send_signal(signal.SIGTERM)
        news = served.news(f"seen={number}")
        while not news["over"]:
            news = served.news(f"seen={news['number']}")
        assert (news["parts"]["run"]["state"], news["parts"]["run"]["over"]) == ("stopped", True)
        assert {"rank 0", "group 0"} <= news["parts"].keys()  # all there is: nothing can be asked for later
        assert served.process.wait(PATIENCE_S) == 0


def test_a_page_that_is_late_is_told_of_the_end_too(launcher):
    """The command waits for each page that is open, and for no other."""
    with acted(launcher) as (served, _, run):
        served.news("seen=0&page=late")
        run.send_signal(signal.SIGTERM)
        while not served.news("seen=0&page=quick")["over"]:
            pass
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(2)
        assert served.news("seen=0&page=late")["over"]
        assert served.process.wait(PATIENCE_S) == 0


def test_ctrl_c_ends_it_whoever_is_connected(launcher):
    with acted(launcher) as (served, _, run):
        number = served.news()["number"]
        waiting = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        waiting[0].sendall(f"GET {served.path}news?seen={number + 9**6} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE_S) == 130
        assert run.poll() is None
        for each in waiting:
            each.close()


# --- wrong usage ---


def test_what_cannot_be_followed_is_refused(launcher, snapshot):
    events = [AgentStarted(identify(1), None, 1), AttemptStarted(0, 1), RankStarted(0, 50), RankEnded(0, 50, 0)]
    acted_run.make(launcher.runs / "a", [*events, AgentEnded(Cause.FINISHED, 0)], ranks=1)
    typed = (
        "--live a b",
        "--port 8000",
        "--live --json a",
        "--live --html x a",
        "--live --port 0",
        "--live a",
        "--live b",
    )
    assert launcher.refused(2, *(f"report {words}" for words in typed)) == snapshot


# --- curves ---


def test_a_curve_has_its_extremes_and_gaps_however_many_points_there_are():
    points = tuple((float(step), None if 500 <= step < 900 else 1.0) for step in range(10_000))
    points = (*points[:7000], (7000.0, 9.0), *points[7001:])
    kept = list(thinned(points))
    assert len(kept) <= 4 * MAX_BUCKETS
    assert {points[0], points[-1], (7000.0, 9.0)} <= set(kept)
    chart = drawn(Chart("loss", (Series("training", points),), restarts=((7.0, "again"), (1e9, "never seen"))))
    assert chart["series"][0]["d"].count("M") == 2
    assert [text for text, _ in chart["grid"]] == ["1", "5", "9"]
    assert chart["restarts"] == [[1, "again"]]
    assert chart["steps"] == ["0", "9,999"]


@pytest.mark.parametrize(
    "points", [((1.0, 2.0),), ((1.0, 2.0), (1.0, 2.0)), ((1.0, 1e300), (2.0, -1e300)), ((1.0, None), (2.0, 0.0))]
)
@pytest.mark.parametrize("dots", [False, True])
def test_every_curve_stays_in_its_square(points, dots):
    chart = drawn(Chart("loss", (Series("training", points, rings=dots), Series("nothing", ((1.0, None),)))))
    [series] = chart["series"]
    numbers = [int(text) for text in re.findall(r"\d+", series["d"].replace("h0", ""))]
    assert all(0 <= number <= SIDE for number in (*numbers, *(y for _, y in chart["grid"])))
    json.dumps(chart, allow_nan=False)


# --- in a browser ---


@pytest.fixture
def chromium(tmp_path):
    command = found()
    if command is None:
        pytest.skip("no chromium or chrome starts here")
    with browser(command, tmp_path / "profile") as made:
        yield made


@contextmanager
def followed(launcher, *arguments, ranks=3):
    """A run of hostile ranks, its process, and its page."""
    run = launcher.start("run", "--devices", ranks, "--", sys.executable, PROGRAMS / "hostile_steps.py", *arguments)
    launcher.wait_ready(ranks)
    yield run, serve(launcher)


def test_the_page_follows_a_run_to_its_end_and_stays_readable(launcher, chromium):
    with followed(launcher, "fails") as (run, served):
        page = chromium.page(served.address)
        page.wait_for("#state", "running")
        page.wait("document.querySelectorAll('#rows tr').length === 3")
        page.wait_for(".legend", "validation 1.5")
        path = page.value("document.querySelector('.plot path.s0').getAttribute('d')")
        page.wait(f"document.querySelector('.plot path.s0').getAttribute('d') !== {json.dumps(path)}")
        page.click("a[href='#rank-1']")
        page.wait_for("#log", "step 3 of rank 1\nstep 3 of rank 1")
        assert page.text("#log").startswith(
            "<script>document.title = 'taken'</script><img src=http://example.com/x onerror="
        )
        assert "red\n" in page.text("#log")
        assert page.value("document.querySelectorAll('#log script, #log img').length") == 0
        unchosen = chromium.page(served.address)
        unchosen.wait_for("#log", "of rank 0")
        second = chromium.page(f"{served.address}#rank-0", width=400, dark=True)
        second.wait_for("#log", "of rank 0")
        assert second.value("document.documentElement.scrollWidth") == 400
        assert second.value("getComputedStyle(document.body).backgroundColor") != page.value(
            "getComputedStyle(document.body).backgroundColor"
        )
        launcher.write("end")
        for each, rank in ((page, 1), (second, 0), (unchosen, 1)):
            each.wait_for("#connection", "The run is over.")
            assert each.text("#state") == "failed"
            assert "rank 1 failed first: ValueError: <b>bold</b>" in each.text("#sentence")
            assert "the last line" in each.text("#log")
            assert each.text("#log-title") == f"Log of rank {rank}"
        assert (run.wait(PATIENCE_S), served.process.wait(PATIENCE_S)) == (1, 0)
        assert page.texts("#rows tr.bad th") == ["1"]
        assert page.text("title").startswith("failed: ")
        page.click("a[href='#rank-2']")  # it is too late
        page.wait_for("#log-note", "device2/train.log")
        for each in (page, second):
            assert {urlsplit(address).netloc for address in each.loaded} <= {f"127.0.0.1:{served.port}", ""}
            assert each.complaints == []


def test_a_chart_keeps_its_place_when_its_scale_changes(launcher, chromium):
    with acted(launcher) as (served, run_dir, _), run_dir.metrics.open("a") as metrics:

        def write(step, loss):
            line = {"schema": 1, "time_ns": step + 1, "attempt": 0, "step": step, "loss": loss, "tokens_per_s": 100.0}
            metrics.write(json.dumps(line) + "\n")
            metrics.flush()

        page = chromium.page(served.address)
        titles = "[...document.querySelectorAll('#charts figcaption')].map((node) => node.textContent)"
        for step in range(4):
            write(step, 4.0 - step)
        page.wait(f"{titles}.length === 2")
        before = page.value(titles)
        for step in range(4, 304):
            write(step, 0.001)
        page.wait(f"{titles}.includes('{before[0]}, log scale')")
        assert page.value(titles) == [f"{before[0]}, log scale", before[1]]


def test_alike_ranks_share_a_row_and_each_can_be_reached_by_keys(launcher, chromium):
    me = identify(1)
    ranks = [RankStarted(rank, me.pid, me.started) for rank in range(64)]
    run_dir = acted_run.make(
        launcher.runs / "a", [AgentStarted(acted_run.me(), None, 64), AttemptStarted(0, 1), *ranks], ranks=64
    )
    for rank in range(64):
        beat({"TLAUNCH_HEARTBEAT_FILE": str(run_dir.heartbeat(rank))}, Beat(step=7 if rank == 17 else 20))
    run_dir.train_log(0).write_text("of rank 0\n")
    served = serve(launcher, "a")
    page = chromium.page(served.address)
    page.wait("document.querySelectorAll('#rows tr').length === 2")
    assert page.texts("#rows th") == ["17", "0-16,18-63"]
    page.value("document.querySelectorAll('#rows a')[1].focus()")
    page.press("Enter")
    page.wait("document.querySelectorAll('#rows tr').length === 64")
    assert page.value("document.activeElement.id") == "each"
    for _ in range(2):  # over the region that scrolls, to the first rank
        page.press("Tab")
    page.press("Enter")
    page.wait_for("#log", "of rank 0")
    served.process.kill()
    page.wait_for("#connection", "The server of this page is gone")
    assert len(page.texts("#rows tr")) == 64


def test_news_of_many_equal_ranks_are_short(launcher):
    ranks = [RankStarted(rank, 2**22 + 1, 1) for rank in range(256)]  # no process has this number
    view = LiveView(acted_run.make(launcher.runs / "a", [AgentStarted(acted_run.me(), None, 256), *ranks], ranks=256))
    view.look()
    number, parts = view.after(0, each=False)
    assert len(json.dumps(parts)) < 4000
    view.look()
    later, parts = view.after(number, each=True)
    assert later == number + 1
    assert not any(name.startswith("rank ") for name in parts)
