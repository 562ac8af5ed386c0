"""Server-sent events, WebSocket, and FluxMQ's bridge."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import paho.mqtt.client as paho
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, RejectData, Request, TextMessage

from assay.reference_broker.api.watching import MAX_WATCHED, MAX_WATCHED_BYTES, Watcher
from assay.reference_broker.core.routing import SubscriptionTree
from assay.reference_broker.http.guard import ClientGoneError
from assay.reference_broker.http.routes.streams import Stream
from assay.reference_broker.routing.message import Message
from tests.http.conftest import Served, secured, serve

_numbers = count()
WAIT_S = 20.0


@pytest.fixture
def queue(served: Served) -> str:
    """A new queue of one partition."""
    name = f"s{next(_numbers)}"
    made = served.client().post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}})
    assert made.status_code == 201
    return name


def _publish(served: Served, queue: str, *payloads: str) -> None:
    body = {"messages": [{"payload": each} for each in payloads]}
    assert served.client().post(f"/api/v1/queues/{queue}/messages", json=body).status_code == 200


def test_server_sent_events(served: Served, queue: str) -> None:
    _publish(served, queue, "a", "b")
    client = served.client()
    place = f"/api/v1/queues/{queue}/stream"
    with client.stream("GET", place, params={"group": "g", "prefetch": 2}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        found: list[Any] = []
        while len(found) < 2:
            line = next(lines)
            if line.startswith("data: "):
                found.append(msgspec.json.decode(line[6:]))
        assert [each["payload"] for each in found] == ["a", "b"]
        again = served.client().get(place, params={"group": "g"})
        assert (again.status_code, again.json()["code"]) == (409, "in_use")
        body = {"outcome": "accept", "receipts": [found[0]["receipt"]]}
        assert served.client().post(f"/api/v1/queues/{queue}/settle", json=body).status_code == 200
    # With the stream its consumer has gone: what it left unsettled is for others.
    taken = served.client().post(f"/api/v1/queues/{queue}/consume", json={"group": "g", "wait_s": 20}).json()
    assert [each["payload"] for each in taken["messages"]] == ["b"]


class _Client:
    """A WebSocket."""

    def __init__(self, connection: socket.socket, host: str, target: str, **headers: str) -> None:
        self._socket = connection
        self._websocket = WSConnection(ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        connection.sendall(self._websocket.send(Request(host=host, target=target, extra_headers=extra)))
        self.opened = self._next()

    def _next(self) -> Any:
        while True:
            for event in self._websocket.events():
                return event
            data = self._socket.recv(65_536)
            self._websocket.receive_data(data or None)

    def say(self, said: object) -> None:
        self._socket.sendall(self._websocket.send(TextMessage(data=msgspec.json.encode(said).decode())))

    def hear(self) -> Any:
        text = ""
        while True:
            event = self._next()
            assert isinstance(event, TextMessage), event
            text += event.data
            if event.message_finished:
                return msgspec.json.decode(text)

    def close(self) -> None:
        self._socket.sendall(self._websocket.send(CloseConnection(code=1000)))
        assert isinstance(self._next(), CloseConnection)


@contextmanager
def _websocket(served: Served, target: str, **headers: str) -> Iterator[_Client]:
    url = httpx.URL(served.urls[0])
    with socket.create_connection((url.host, url.port or 80), WAIT_S) as connection:
        yield _Client(connection, f"{url.host}:{url.port}", target, **headers)


def test_a_name_cannot_add_fields_to_an_event(served: Served) -> None:
    """Where a client may make queues, it would else tell their readers of messages that nobody sent."""
    name = f"s{next(_numbers)}\rdata: forged\ndata: forged"
    client = served.client()
    assert client.post("/api/v1/queues", json={"name": name, "settings": {"partitions": 1}}).status_code == 201
    place = f"/api/v1/queues/{quote(name, safe='')}"
    assert client.post(f"{place}/messages", json={"messages": [{"payload": "a"}]}).status_code == 200
    with client.stream("GET", f"{place}/stream", params={"group": "g"}) as stream:
        told, parts = b"", stream.iter_raw()
        while b"payload" not in told or not told.endswith(b"\n\n"):
            told += next(parts)
    fields = [line.partition(b":")[0] for line in re.split(rb"\r\n|\r|\n", told.partition(b"id: ")[2])]
    assert fields[1:] == [b"event", b"data", b"", b""], told


def test_a_stream_too_many_is_told_so_and_leaves_nothing_behind() -> None:
    with serve(max_waiting=1) as broker:
        served = Served(broker)
        client = served.client()
        assert client.post("/api/v1/queues", json={"name": "q", "settings": {"partitions": 1}}).status_code == 201
        with client.stream("GET", "/api/v1/subscriptions/a/stream") as first:
            assert first.status_code == 200
            for path in ("/api/v1/queues/q/stream?group=g", "/api/v1/subscriptions/a/stream"):
                refused = served.client().get(path)
                assert (refused.status_code, refused.json()["code"]) == (503, "busy")
            assert client.get("/api/v1/queues/q/consumers").json()["consumers"] == []
        served.close()


def test_who_goes_before_its_stream_begins_leaves_nothing_behind() -> None:
    closed: list[str] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"never"

    async def gone(_message: Any) -> None:
        raise ClientGoneError

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def answer() -> None:
        opened = contextlib.ExitStack()
        opened.callback(closed.append, "closed")
        await Stream(events(), opened)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, gone)

    with pytest.raises(ClientGoneError):
        asyncio.run(answer())
    assert closed == ["closed"]


def test_a_websocket_gets_what_it_has_credit_for(served: Served, queue: str) -> None:
    _publish(served, queue, "a", "b", "c")
    with _websocket(served, f"/api/v1/queues/{queue}/socket?group=g") as client:
        assert isinstance(client.opened, AcceptConnection)
        client.say({"credit": 2})
        first, second = client.hear()["message"], client.hear()["message"]
        assert [first["payload"], second["payload"]] == ["a", "b"]
        client.say({"settle": {"outcome": "accept", "receipts": [first["receipt"]]}})
        assert client.hear() == {"settled": 1}
        client.say({"settle": {"outcome": "accept", "receipts": [first["receipt"]]}})
        assert client.hear()["problem"]["code"] == "not_pending"
        client.say({"credits": 1})
        assert client.hear()["problem"]["code"] == "bad_request"
        client.say({"credit": 1})
        assert client.hear()["message"]["payload"] == "c"
        client.close()


def test_a_websocket_of_another_site_is_refused(served: Served, queue: str) -> None:
    place = f"/api/v1/queues/{queue}/socket?group=g"
    with _websocket(served, place, origin="http://evil.example") as client:
        assert isinstance(client.opened, RejectConnection)
        assert client.opened.status_code == 403
        told = client._next()
        assert isinstance(told, RejectData)
        assert b"cross_site" in told.data
    with _websocket(served, "/api/v1/queues/nowhere-at-all+/socket?group=g") as client:
        assert isinstance(client.opened, RejectConnection)


def test_the_bridge_publishes_to_topics(served: Served, queue: str) -> None:
    got: list[tuple[str, bytes]] = []
    subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2)
    ready: list[object] = []
    subscriber.on_subscribe = lambda *_: ready.append(1)
    subscriber.on_message = lambda _client, _data, message: got.append((message.topic, message.payload))
    subscriber.connect(served.broker.host, served.broker.port)
    subscriber.subscribe("#")
    while not ready:
        subscriber.loop()
    client = served.client()
    body = {"topic": "a/b", "payload": base64.b64encode(b"x").decode(), "qos": 1}
    assert client.post("/publish", json=body).json() == {"status": "ok", "matched": True}
    raw = client.post("/m/acme/c/news", content=b"\xff", params={"qos": 1}, headers={"content-type": "text/x"})
    assert raw.json() == {"status": "ok", "matched": True}
    while len(got) < 2:
        subscriber.loop()
    subscriber.disconnect()
    assert got == [("a/b", b"x"), ("m/acme/c/news", b"\xff")]
    answer = client.post("/publish", json={"topic": f"$queue/{queue}", "payload": ""})
    assert answer.json() == {"status": "ok", "matched": True, "id": f"{queue}:0:0"}
    assert client.post("/publish", json={"topic": "nobody"}).json()["matched"] is False
    client.put(f"/api/v1/queues/{queue}/bindings", json={"topics": [f"bound/{queue}"]}).raise_for_status()
    assert client.post("/publish", json={"topic": f"bound/{queue}"}).json()["matched"] is True
    for topic, status in (("a/+", 400), ("$SYS/x", 403), ("", 400), (f"$queue/{queue}/$ack", 403)):
        assert client.post("/publish", json={"topic": topic}).status_code == status
    assert client.post("/publish", json={"topic": "a", "qos": 3}).status_code == 400
    assert client.get("/publish").status_code == 405


def test_the_bridge_needs_the_scope(guarded: Served) -> None:
    reader = guarded.client(1, authorization="Bearer assay_reader")
    assert reader.post("/publish", json={"topic": "a"}).status_code == 403
    named = guarded.client(1)
    headers = {"x-fluxmq-username": "ann", "authorization": "Client secret", "x-fluxmq-client-id": "device-1"}
    assert named.post("/publish", json={"topic": "a"}, headers=headers).status_code == 200


def test_a_stream_ends_when_users_are_read_again() -> None:
    with serve(secured()) as broker:
        guarded = Served(broker)
        reader = guarded.client(1, authorization="Bearer assay_reader")
        with reader.stream("GET", "/api/v1/queues/orders/stream", params={"group": "g"}) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": here"
            broker.reload(broker.config)
            writer = guarded.client(1, authorization="Bearer assay_writer")
            # It looks when something comes, or a little later.
            writer.post("/api/v1/queues/orders/messages", json={"messages": [{"payload": "last"}]})
            told = [line for line in lines if line.startswith("data: ")]
        assert len(told) <= 1
        guarded.close()


def test_topics_are_watched_as_they_come(served: Served) -> None:
    client = served.client()
    with client.stream("GET", "/api/v1/subscriptions/watch%2F+/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == ": here"
        sent = {"topic": "watch/1", "payload": base64.b64encode(b"hello").decode(), "properties": {"a": "b"}}
        assert client.post("/publish", json={"topic": "elsewhere/1"}).status_code == 200
        assert client.post("/publish", json={**sent, "qos": 1, "retain": True}).json()["matched"] is True
        data = next(line for line in lines if line.startswith("data: "))
        told = msgspec.json.decode(data[6:])
    assert told == {"topic": "watch/1", "payload": "hello", "qos": 1, "retain": True, "headers": {"a": "b"}}
    # With the stream its subscription has gone; the broker notices once it sends something.
    for _ in range(200):
        if not client.post("/publish", json={"topic": "watch/2"}).json()["matched"]:
            break
    else:
        pytest.fail("who watched is still there")


@pytest.mark.parametrize(
    ("topic_filter", "status", "code"),
    [("$SYS%2F%23", 403, "not_allowed"), ("$queue%2Fa", 403, "not_allowed"), ("a%2F%23%2Fb", 400, "bad_address")],
)
def test_a_filter_that_nobody_may_watch(served: Served, topic_filter: str, status: int, code: str) -> None:
    answer = served.client().get(f"/api/v1/subscriptions/{topic_filter}/stream")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize(("size", "most"), [(1, MAX_WATCHED), (MAX_WATCHED_BYTES // 4, 4)])
def test_who_watches_and_does_not_read_misses_some(size: int, most: int) -> None:
    broker = SimpleNamespace(tree=SubscriptionTree())

    async def watch() -> None:
        watcher = Watcher(broker, "a/#")  # type: ignore[arg-type]
        for _ in range(most + 3):
            for entry in broker.tree.route("a/1").entries:
                entry.subscriber.deliver(Message(topic="a/1", payload=bytes(size)), 0, False)
        taken, missed = await watcher.take(most + 1, WAIT_S)
        assert (len(taken), missed) == (most, 3)
        assert await watcher.take(1, 0.0) == ([], 0)
        watcher.end()
        assert not broker.tree.route("a/1").entries

    asyncio.run(watch())
