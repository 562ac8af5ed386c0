"""Hooks on sockets: what HTTP and gRPC ask, and that one who answers late, wrongly or not at all stops nobody else."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import httpx
import msgspec
import paho.mqtt.client as mqtt
import paho.mqtt.publish
import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.clients.grpc_client import GrpcQueues
from assay.reference_broker.clients.http_client import HttpQueues, RefusedError
from assay.reference_broker.config import BrokerConfig, HookFailure, HooksConfig, ListenerConfig, ListenerProtocol

Asked = dict[str, Any]


@contextmanager
def decider(decide: Callable[[Asked], object]) -> Iterator[tuple[str, Queue[Asked]]]:
    """One who answers hooks, its URL, and what it was asked."""
    got: Queue[Asked] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
            got.put(asked)
            answer = decide(asked)
            self.send_response(200 if answer is not None else 500)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(answer))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hooks", got
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(url: str, **hooks: Any) -> Iterator[tuple[Broker, HttpQueues]]:
    spoken = ((ListenerProtocol.MQTT,), (ListenerProtocol.HTTP,), (ListenerProtocol.GRPC,))
    listeners = tuple(ListenerConfig(port=0, protocols=each) for each in spoken)
    config = BrokerConfig(listeners=listeners, hooks=HooksConfig(url=url, **{"allow_private": True, **hooks}))
    with Broker(config) as broker, HttpQueues(broker.addresses[1].url) as queues:
        yield broker, queues


def allow_some(asked: Asked) -> object:
    """Refuses payloads that say ``bad``, and consumers of ``secret``."""
    if base64.b64decode(asked["payload"]) == b"bad" or "secret" in asked["topic"]:
        return {"result": "deny", "reason": f"{asked['hook']} of {asked['topic']}"}
    if asked["hook"] == "auth_on_subscribe":
        return {"result": "ok"}
    return {"result": "ok", "properties": {**asked["properties"], "seen": "yes"}}


def refusal_of(ask: Callable[[], object]) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        ask()
    return refused.value


def test_what_requests_publish_and_consume_is_asked_about() -> None:
    with decider(allow_some) as (url, got), serving(url, timeout_s=30) as (_, queues):
        sent = {"messages": [{"payload": "good"}, {"payload": "bad"}, {"payload": "better"}]}
        answer = queues.ask("POST", "/queues/jobs/messages", body=sent)
        assert [each.get("error", {}).get("code") for each in answer["results"]] == [None, "not_allowed", None]
        assert {got.get(timeout=60)["topic"] for _ in range(3)} == {"$queue/jobs"}
        taken = queues.ask("POST", "/queues/jobs/consume", body={"group": "g", "max_messages": 9, "wait_s": 20})
        assert [each["headers"] for each in taken["messages"]] == [{"seen": "yes"}] * 2
        assert got.get(timeout=60)["hook"] == "auth_on_subscribe"
        queues.ask("POST", "/queues/jobs/consume", body={"group": "g"})
        assert got.empty(), "a consumer that is there is not asked about again"
        queues.create_queue("secret")
        refused = refusal_of(lambda: queues.ask("POST", "/queues/secret/consume", body={"group": "g"}))
        assert (refused.status, str(refused.code)) == (403, "not_allowed")
        assert "auth_on_subscribe of $queue/secret" in str(refused)
        joining = {"client_id": "me", "topics": ["secret"]}
        assert refusal_of(lambda: queues.ask("POST", "/groups/g/join", body=joining)).status == 403


def test_a_topic_may_be_another() -> None:
    answer = {"result": "ok", "topic": "there", "payload": base64.b64encode(b"moved").decode()}
    with decider(lambda _: answer) as (url, _), serving(url, timeout_s=30, kinds=("auth_on_publish",)) as (broker, _):
        received: Queue[bytes] = Queue()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        client.on_connect = lambda *_: client.subscribe("there", 1)
        client.on_subscribe = lambda *_: received.put(b"subscribed")
        client.on_message = lambda _client, _data, message: received.put(message.payload)
        client.connect("127.0.0.1", broker.addresses[0].port)
        client.loop_start()
        try:
            assert received.get(timeout=60) == b"subscribed"
            sent = {"topic": "here", "payload": "eA==", "qos": 1}
            assert httpx.post(f"{broker.addresses[1].url}/publish", json=sent, timeout=60).json()["matched"]
            assert received.get(timeout=60) == b"moved"
        finally:
            client.disconnect()
            client.loop_stop()


def test_grpc_asks_as_well() -> None:
    async def publish(target: str) -> None:
        async with GrpcQueues(target) as queues:
            await queues.publish("jobs", b"good")
            with pytest.raises(RefusedError):
                await queues.publish("jobs", b"bad")

    with decider(allow_some) as (url, got), serving(url, timeout_s=30) as (broker, _):
        asyncio.run(publish(f"127.0.0.1:{broker.addresses[2].port}"))
        assert [got.get(timeout=60)["protocol"] for _ in range(2)] == ["api", "api"]


def test_one_who_answers_late_stops_nobody_else() -> None:
    release = threading.Event()

    def slow(asked: Asked) -> object:
        if asked["topic"] == "slow":
            release.wait(60)
        return {"result": "ok"}

    with decider(slow) as (url, got), serving(url, timeout_s=30, kinds=("auth_on_publish",)) as (broker, queues):
        host, port = "127.0.0.1", broker.addresses[0].port
        done: list[str] = []

        def publish_slowly() -> None:
            paho.mqtt.publish.single("slow", "x", qos=1, hostname=host, port=port)
            done.append("slow")

        thread = threading.Thread(target=publish_slowly, daemon=True)
        thread.start()
        assert got.get(timeout=60)["topic"] == "slow"
        paho.mqtt.publish.single("quick", "x", qos=1, hostname=host, port=port)
        assert queues.ask("GET", "/overview")
        assert done == []
        release.set()
        thread.join(60)
        assert done == ["slow"]


@pytest.mark.parametrize(
    ("trouble", "fail"),
    [
        ("down", HookFailure.ALLOW),
        ("down", HookFailure.DENY),
        ("wrong", HookFailure.DENY),
        ("late", HookFailure.ALLOW),
        ("private", HookFailure.DENY),
    ],
)
def test_one_who_does_not_answer(trouble: str, fail: HookFailure) -> None:
    release = threading.Event()

    def troubled(_: Asked) -> object:
        if trouble == "late":
            release.wait(60)
        return None

    with decider(troubled) as (url, _):
        if trouble == "down":
            with socket.create_server(("127.0.0.1", 0)) as nobody:
                url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        private = {"allow_private": False} if trouble == "private" else {}
        hooks = {"timeout_s": 0.1, "fail": fail, "kinds": ("auth_on_publish",), **private}
        with serving(url, **hooks) as (broker, _):
            sent = {"topic": "t", "payload": "eA==", "qos": 1}
            answer = httpx.post(f"{broker.addresses[1].url}/publish", json=sent, timeout=60)
            assert answer.status_code == (200 if fail is HookFailure.ALLOW else 403)
            assert fail is HookFailure.ALLOW or "cannot be asked" in answer.json()["detail"]
            figures = httpx.get(f"{broker.addresses[1].url}/metrics").text
            assert "\nassay_hooks_undecided_total 1" in figures
        release.set()
