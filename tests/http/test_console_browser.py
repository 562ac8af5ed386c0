"""The console in Chromium: what one does with it, by mouse and by keyboard, and that what others wrote stays text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from browser import CHROMIUM, Browser, Page, browser

from assay import console_picture
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, TracingConfig, parse_config
from assay.reference_broker.trace.results import RunKind, RunResult, Verdict, read_result, write_result
from tests.http.conftest import Served, serve

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
VIEWS = ("", "queues", "sessions", "topics", "live", "tenants", "traces")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Any]:
    """Opens a view; whatever its scripts complained of fails the test."""
    pages: list[Page] = []

    def opened(served: Served, view: str = "", **more: Any) -> Page:
        page = chromium.page(f"{served.urls[0]}/console/#/{view}", **more)
        pages.append(page)
        return page

    yield opened
    problems = [problem for page in pages for problem in page.problems]
    for page in pages:
        page.close()
    assert not problems


def _queue(served: Served, name: str, *messages: dict[str, Any]) -> None:
    client = served.client()
    client.post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}}).raise_for_status()
    if messages:
        client.post(f"/api/v1/queues/{name}/messages", json={"messages": messages}).raise_for_status()


def _reject_one(served: Served, name: str) -> None:
    client = served.client()
    body = {"group": "work", "consumer": "c", "wait_s": 20}
    (taken,) = client.post(f"/api/v1/queues/{name}/consume", json=body).json()["messages"]
    settled = {"outcome": "reject", "receipts": [taken["receipt"]], "reason": "no good"}
    client.post(f"/api/v1/queues/{name}/settle", json=settled).raise_for_status()


def test_a_queue_from_its_making_to_its_end(served: Served, open_page: Any) -> None:
    page = open_page(served)
    page.click("Queues")
    page.click("Create a queue")
    page.fill("Name", "seen")
    page.fill("Partitions", "2")
    page.fill("Further settings", "{")
    page.click("Create")
    page.has("that is not JSON", "dialog")  # and nothing that was typed is lost
    page.fill("Further settings", '{"max_depth": 77}')
    page.click("Create")
    page.has("Nothing was published yet")

    page.click("Publish", "a")
    page.fill("Payload", '{"order": 7}')
    page.fill("Headers", "source: console")
    page.click("Publish", "button")
    page.has("seen has it, at offset 0")
    page.run("location.hash = '#/queues/seen/messages'")
    page.click("Look")
    page.until("document.querySelector('.message .preview').textContent === '{\"order\": 7}'")
    page.run("document.querySelector('.message').open = true")
    page.has("source", ".message .facts")

    page.run("location.hash = '#/live?queue=seen'")
    page.choose("What", "consume")
    page.fill("Group", "shown")
    page.click("Listen")
    page.until("document.querySelector('.message')")
    page.run("document.querySelector('.message').open = true")
    page.click("Reject")
    page.has("It is a dead letter now.")
    page.click("Stop")

    page.run("location.hash = '#/queues/seen/dead-letters'")
    page.has("0:0", ".message")
    page.run("document.querySelector('.message').open = true")
    page.click("Replay this one")
    page.has("1 dead letter sent back.", "#toasts")
    page.has("No dead letters")

    page.run("location.hash = '#/queues/seen/settings'")
    page.has("max_depth")
    page.click("Purge…")
    page.until("document.querySelector('dialog .danger').disabled")
    page.fill("Type", "see")
    page.until("document.querySelector('dialog .danger').disabled")
    page.fill("Type", "seen")
    page.click("Purge")
    page.has("purged from seen", "#toasts")
    page.click("Delete…")
    page.fill("Type", "seen")
    page.click("Delete")
    page.has("Queue seen is deleted.", "#toasts")
    assert "seen" not in served.client().get("/api/v1/queues").json()["queues"]


def test_who_may_only_look_is_told_why(guarded: Served, open_page: Any) -> None:
    page = open_page(guarded, "queues/orders")
    page.fill("Token", "assay_nobody")
    page.click("Sign in", "dialog button")
    page.has("That token is not known here", "dialog")
    page.fill("Token", "assay_reader")
    page.click("Sign in", "dialog button")
    page.until("document.querySelector('#who').textContent === 'ann'")
    page.until("document.querySelector('button[data-refused]')?.title.includes('needs the scope')")
    page.click("Purge…")
    page.has('This needs the scope "admin"', "#toasts")
    assert not page.run("document.querySelector('dialog')")
    page.run("location.hash = '#/sessions'")
    page.has("needs the scope admin", "#main")
    kept = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    assert "assay_reader" not in page.run(kept)


def test_what_others_wrote_is_text(served: Served, open_page: Any) -> None:
    name = "hostile<img>"
    hostile = {"payload": HOSTILE, "key": HOSTILE, "headers": {HOSTILE: HOSTILE}, "content_type": HOSTILE}
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=HOSTILE)
    done: list[object] = []
    client.on_subscribe = lambda *_: done.append(1)
    client.connect(served.broker.host, served.broker.port)
    client.subscribe(f"hostile/{HOSTILE.replace('/', '')}")
    while not done:
        client.loop()
    http = served.client()
    http.post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}}).raise_for_status()
    http.post("/api/v1/queues/hostile%3Cimg%3E/messages", json={"messages": [hostile] * 2}).raise_for_status()
    page = open_page(served)
    page.has("Messages in queues")
    places = {
        "queues": "hostile<img>",
        "queues/hostile%3Cimg%3E/messages": HOSTILE[:40],
        "queues/hostile%3Cimg%3E/settings": "hostile<img>",
        "sessions": HOSTILE[:40],
        "topics": "hostile/<img",
    }
    for view, shown in places.items():
        page.run(f"location.hash = {json.dumps('#/' + view)}")
        page.has(shown, "#main")
        page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        page.until("[...document.querySelectorAll('.message')].every((each) => each.querySelector('.facts'))")
        assert not page.run("document.querySelector('main img, main script, main iframe')"), view
    assert "taken" not in page.run("document.title")
    client.disconnect()


def test_by_keyboard_alone(served: Served, open_page: Any) -> None:
    for name in ("keys-a", "keys-b"):
        _queue(served, name)
    page = open_page(served)
    page.has("Messages in queues")
    focused = "document.activeElement"
    page.press("?")
    page.has("Walk over a list", "dialog")
    page.press("Escape")
    page.until("!document.querySelector('dialog')")
    page.press("g")
    page.press("q")
    page.until("document.title.startsWith('Queues')")
    page.press("/")
    page.until(f"{focused}.type === 'search'")
    page.type("keys-")
    page.until("document.querySelectorAll('tbody tr').length === 2")
    for _ in range(3):
        page.press("Tab")
        if page.run(f"{focused}.closest('tbody') !== null"):
            break
    page.press("ArrowDown")
    page.until(f"{focused}.textContent === 'keys-b'")
    assert page.run(f"getComputedStyle({focused}).outlineStyle") == "solid"
    page.press("Home")
    page.press("Enter")
    page.until("document.title.startsWith('keys-a')")
    page.until(f"{focused}.tagName === 'H1'")
    nameless = """[...document.querySelectorAll('button, a, input, select, textarea')].filter((each) =>
      !(each.textContent.trim() || each.ariaLabel || each.labels?.length)).map((each) => each.outerHTML)"""
    for view in VIEWS:
        page.run(f"location.hash = '#/{view}'")
        page.until(f"document.querySelector('#views [aria-current]')?.dataset.view === '{view}'")
        assert page.run(nameless) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(served: Served, open_page: Any, scheme: str) -> None:
    name = f"narrow-{scheme}"
    _queue(served, name, {"payload": "x" * 500, "key": "k" * 200})
    _reject_one(served, name)
    page = open_page(served, width=360, height=740, scheme=scheme)
    tabs = ("", "/messages", "/groups", "/dead-letters", "/delayed", "/settings")
    for view in (*VIEWS, *(f"queues/{name}{tab}" for tab in tabs)):
        page.run(f"location.hash = '#/{view}'")
        page.until("document.querySelector('main h1') && !document.querySelector('main')?.inert")
        page.run("new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)))")
        assert page.run("document.documentElement.scrollWidth") <= 360, view
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"}[scheme]
    page.click("", "#theme")
    page.until(f"getComputedStyle(document.body).backgroundColor !== '{ground}'")


def test_a_view_that_is_left_while_it_asks_tells_of_no_fault(served: Served, open_page: Any) -> None:
    """Whoever left the messages of a queue early was told that the console has a fault: the signal was aborted."""
    _queue(served, "left-early", {"payload": "x"})
    page = open_page(served, "queues/left-early")
    for _ in range(5):
        page.run(
            "new Promise((left) => { addEventListener('hashchange', () => {"
            " location.hash = '#/queues/left-early/groups'; left(); }, { once: true });"
            " location.hash = '#/queues/left-early/messages'; })"
        )
        page.has("Let a group begin")
    assert not page.run("document.body.innerText.includes('has a fault')")


def test_what_is_typed_outlives_a_broker_that_is_away(served: Served, open_page: Any) -> None:
    _queue(served, "patient")
    page = open_page(served, "queues")
    page.has("patient", "tbody")
    asked = "performance.getEntriesByType('resource').map((each) => new URL(each.name).pathname)"
    assert {path for path in page.run(asked) if "/api/" in path} == {"/api/v1/whoami", "/api/v1/stats/queues"}
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.enable")
    page.call("Network.emulateNetworkConditions", offline=True, **offline)
    page.click("Create a queue")
    page.fill("Name", "patient-too")
    page.click("Create")
    page.has("The broker cannot be reached.", "dialog")
    page.has("Next try within", "#state")
    page.call("Network.emulateNetworkConditions", offline=False, **offline)
    page.until("document.querySelector('#state').hidden")
    page.click("Create")
    page.until("document.title.startsWith('patient-too')")


def test_what_became_of_a_message(open_page: Any) -> None:
    with serve(BrokerConfig(tracing=TracingConfig(enabled=True, ratio=1.0))) as broker:
        traced = Served(broker)
        _queue(traced, "traced", {"payload": "x"})
        _reject_one(traced, "traced")
        page = open_page(traced, "traces")
        page.has("traced 0:0", "tbody")
        page.run("document.querySelector('tbody a').click()")
        for event in ("publish.received", "publish.persisted", "consume.fetched", "dlq.routed"):
            page.has(event, ".waterfall")
        assert page.run("document.querySelectorAll('.waterfall rect').length") >= 4
        traced.close()


def test_where_nothing_is_traced_the_view_says_so(served: Served, open_page: Any) -> None:
    open_page(served, "traces").has("Tracing is off")


def test_messages_of_topics_as_they_come(served: Served, open_page: Any) -> None:
    page = open_page(served, "live?kind=topic")
    page.fill("Topics", "watched/#")
    page.click("Listen")
    page.has("nothing came yet")
    page.fill("Topic", "watched/1")
    page.fill("Payload", "first")
    page.click("Publish", "button")
    page.has("Published to watched/1.")
    page.until("document.querySelector('.message .preview').textContent === 'first'")


def test_the_picture_of_what_a_run_left(tmp_path: Path) -> None:
    settings = {"queues": {"configured": [{"name": "tasks"}]}}
    with Broker(parse_config({**settings, "data_dir": str(tmp_path / "data"), "listeners": [{"port": 0}]})) as broker:
        broker.queues.publish("tasks", b"left")
    (tmp_path / "broker.yaml").write_text(json.dumps(settings), encoding="utf-8")
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    write_result(tmp_path, RunResult(kind=RunKind.FAULTS, name="left", verdict=Verdict.PASS, summary="It passed."))
    assert console_picture.add_picture(tmp_path).startswith("The console over what the run left")
    assert read_result(tmp_path / "result.json").artefacts == {"console": "console.webp"}
    assert 5_000 < (tmp_path / "console.webp").stat().st_size < console_picture.MAX_BYTES
    assert {path: path.read_bytes() for path in before} == before
