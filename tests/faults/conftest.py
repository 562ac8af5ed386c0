"""A small queue broker and a virtual-time driver, so that the workload clients are tested without any real broker."""

from __future__ import annotations

import heapq
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    encode,
)
from assay.faults.scenario import Scenario, parse_scenario
from assay.faults.toxiproxy import Endpoint, ToxiproxyClient, ToxiproxyThread, toxiproxy_endpoint
from assay.faults.workload import HistoryRecorder, WorkloadClient, WorkloadPlan
from assay.reference_broker.trace.schema import HistoryEvent
from tests.faults.toxiproxy_bench import REAL, Api, Echo

EPOCH = 1_000_000.0
MAX_TURNS = 100_000


class FakeConnection:
    """Broker side of one client's connection."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.decoder = Decoder(5)
        self.output = bytearray()
        self.client_id = ""
        self.group = ""
        self.queue = ""
        self.open = True
        self.held: dict[int, tuple[str, int]] = {}
        self.unanswered: set[int] = set()
        self.packet_ids = itertools.cycle(range(1, 60_000))

    def receive(self, data: bytes) -> None:
        for packet in self.decoder.feed(data):
            self.broker.packet(self, packet)

    def send(self, packet: Any) -> None:
        self.output += encode(packet, 5)


class FakeBroker:
    """Queues in memory, one partition, no durability, one retry rule: an unsettled delivery comes back at once when its
    connection ends or when it is nacked, and is dead-lettered when rejected. ``spoil`` may alter or drop what happens.
    """

    def __init__(self, *, receive_maximum: int = 1_024) -> None:
        self.receive_maximum = receive_maximum
        self.messages: dict[str, list[Publish]] = {}
        self.cursor: dict[tuple[str, str], int] = {}
        self.returned: dict[tuple[str, str], list[int]] = {}
        self.counts: dict[tuple[str, str, int], int] = {}
        self.connections: list[FakeConnection] = []
        self.silent: Callable[[Publish], bool] = lambda packet: False
        self.refuse: Callable[[Publish], bool] = lambda packet: False
        self.lose: Callable[[Publish], bool] = lambda packet: False
        self.release: Callable[[Publish], bool] = lambda packet: False
        """When true for a publish, the confirms withheld so far are sent, late, before its own."""
        self.withheld: list[tuple[FakeConnection, int]] = []
        self.violations: list[str] = []

    def accept(self) -> FakeConnection:
        connection = FakeConnection(self)
        self.connections.append(connection)
        return connection

    def closed(self, connection: FakeConnection) -> None:
        connection.open = False
        if connection in self.connections:
            self.connections.remove(connection)
        for queue, offset in connection.held.values():
            self.returned.setdefault((queue, connection.group), []).append(offset)
        connection.held.clear()
        self.dispatch()

    def packet(self, connection: FakeConnection, packet: Any) -> None:
        match packet:
            case Connect():
                connection.client_id = packet.client_id
                for other in [c for c in self.connections if c.client_id == packet.client_id and c is not connection]:
                    self.closed(other)
                connection.send(Connack(properties=Properties(receive_maximum=self.receive_maximum)))
            case Subscribe():
                connection.queue = packet.subscriptions[0].filter
                connection.group = dict(packet.properties.user_property)["consumer-group"]
                connection.send(Suback(packet_id=packet.packet_id, reason_codes=(1,)))
                self.dispatch()
            case Publish():
                self.publish(connection, packet)
            case Pingreq():
                connection.send(Pingresp())
            case Disconnect():
                self.closed(connection)
            case Puback():
                pass

    def publish(self, connection: FakeConnection, packet: Publish) -> None:
        if packet.packet_id in connection.unanswered:
            self.violations.append(f"packet identifier {packet.packet_id} is in use")
        connection.unanswered.add(packet.packet_id)
        if len(connection.unanswered) > self.receive_maximum:
            self.violations.append(f"{len(connection.unanswered)} publishes in flight")
        if self.release(packet):
            for other, packet_id in self.withheld:
                other.send(Puback(packet_id=packet_id))
                other.unanswered.discard(packet_id)
            self.withheld.clear()
        code = 0
        base, _, verb = packet.topic.rpartition("/$")
        if base:
            code = self.settle(connection, verb, dict(packet.properties.user_property)["message-id"])
        elif self.refuse(packet):
            code = 0x97
        elif not self.lose(packet):
            self.messages.setdefault(packet.topic, []).append(packet)
        if self.silent(packet):
            self.withheld.append((connection, packet.packet_id))
        else:
            connection.send(Puback(packet_id=packet.packet_id, reason_code=code))
            connection.unanswered.discard(packet.packet_id)
        self.dispatch()

    def settle(self, connection: FakeConnection, verb: str, message_id: str) -> int:
        queue, _, offset = message_id.rpartition(":")
        if connection.held.pop(int(offset), None) is None:
            return 0x80
        if verb == "nack":
            self.returned.setdefault((queue, connection.group), []).append(int(offset))
        elif verb == "reject":
            self.messages.setdefault(queue.replace("$queue/", "$dlq/"), []).append(self.messages[queue][int(offset)])
        return 0

    def dispatch(self) -> None:
        for connection in list(self.connections):
            if not connection.queue or not connection.open:
                continue
            scope = (connection.queue, connection.group)
            for offset in self.returned.pop(scope, []):
                self.deliver(connection, offset)
            for offset in range(self.cursor.get(scope, 0), len(self.messages.get(connection.queue, []))):
                self.deliver(connection, offset)
            self.cursor[scope] = len(self.messages.get(connection.queue, []))

    def deliver(self, connection: FakeConnection, offset: int) -> None:
        key = (connection.queue, connection.group, offset)
        self.counts[key] = self.counts.get(key, 0) + 1
        connection.held[offset] = (connection.queue, offset)
        properties = (
            ("message-id", f"{connection.queue}:{offset}"),
            ("group-id", connection.group),
            ("partition", "0"),
            ("offset", str(offset)),
            ("delivery-count", str(self.counts[key])),
        )
        connection.send(
            Publish(
                topic=connection.queue,
                payload=self.messages[connection.queue][offset].payload,
                qos=1,
                packet_id=next(connection.packet_ids),
                properties=Properties(user_property=properties),
            )
        )


class VirtualRun:
    """Drives a plan against a fake broker in virtual time: each chunk takes ``delay_s`` each way."""

    def __init__(self, scenario: Scenario, broker: FakeBroker, *, seed: int = 1, delay_s: float = 0.001) -> None:
        self.events: list[HistoryEvent] = []
        self.now = EPOCH
        self.broker = broker
        self.delay_s = delay_s
        self.plan = WorkloadPlan(scenario, HistoryRecorder(self.events.append, EPOCH), seed)
        self.links: dict[WorkloadClient, FakeConnection] = {}
        self.cut: Callable[[float], bool] = lambda now: False
        """Dials fail at this time."""
        self.hang: Callable[[WorkloadClient], bool] = lambda client: False
        """Dials of this client never end."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), action))

    def run(self, limit_s: float = 1_000.0) -> list[HistoryEvent]:
        self.plan.start(self.now)
        dialling: set[WorkloadClient] = set()
        turns = 0
        while not (self.plan.finished and not self.links):
            assert self.now < EPOCH + limit_s, f"no end after {limit_s} s: {self.plan.phase}"
            for client in self.plan.clients:
                if client.wants_connection(self.now) and client not in dialling:
                    dialling.add(client)
                    self.at(self.now + self.delay_s, lambda client=client: self._dialled(client, dialling))
            self._flush()
            self.plan.update(self.now)
            self._flush()
            due = [client.next_deadline() for client in self.plan.clients] + [self.plan.next_deadline()]
            times = [time for time in due if time is not None] + [entry[0] for entry in self._agenda[:1]]
            if not times:
                break
            turns += 1
            assert turns < MAX_TURNS, f"{turns} turns: time does not pass"
            assert min(times) > self.now or self._agenda[0][0] <= self.now, "a deadline is stuck in the past"
            self.now = max(self.now, min(times))
            while self._agenda and self._agenda[0][0] <= self.now:
                heapq.heappop(self._agenda)[2]()
            for client in self.plan.clients:
                deadline = client.next_deadline()
                if deadline is not None and deadline <= self.now:
                    client.tick(self.now)
        assert not self.broker.violations, self.broker.violations
        return self.events

    def cut_connections(self) -> None:
        for client in list(self.links):
            self._close(client)

    def _dialled(self, client: WorkloadClient, dialling: set[WorkloadClient]) -> None:
        if self.hang(client):
            return
        dialling.discard(client)
        if self.cut(self.now):
            client.connection_lost(self.now)
            return
        self.links[client] = self.broker.accept()
        client.connection_made(self.now)

    def _close(self, client: WorkloadClient) -> None:
        link = self.links.pop(client, None)
        if link is not None:
            self.broker.closed(link)
            client.connection_lost(self.now)

    def _flush(self) -> None:
        for client, link in list(self.links.items()):
            data = client.take_output()
            if data:
                self.at(self.now + self.delay_s, lambda link=link, data=data: link.receive(data) if link.open else None)
            if client.closing:
                self.at(self.now + self.delay_s, lambda client=client: self._close(client))
        for client, link in list(self.links.items()):
            if link.output:
                data, link.output = bytes(link.output), bytearray()
                self.at(self.now + self.delay_s, lambda c=client, k=link, d=data: self._arrive(c, k, d))
            elif not link.open:
                self.at(self.now + self.delay_s, lambda client=client: self._close(client))

    def _arrive(self, client: WorkloadClient, link: FakeConnection, data: bytes) -> None:
        if self.links.get(client) is link:
            client.receive(data, self.now)


def make_scenario(**changes: Any) -> Scenario:
    """A small scenario; ``workload`` and ``contract`` are merged, the rest replaces."""
    workload = {"queue": "tasks", "messages_per_producer": 40, "rate_per_s": 200.0, **changes.pop("workload", {})}
    contract = {"delivery_timeout_s": 1.0, **changes.pop("contract", {})}
    data = {"name": "test", "workload": [workload], "contract": contract, "drain_timeout_s": 10.0, **changes}
    return parse_scenario(data)


@pytest.fixture
def fake_broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def virtual_run() -> type[VirtualRun]:
    return VirtualRun


@pytest.fixture
def scenario_of() -> Callable[..., Scenario]:
    return make_scenario


@pytest.fixture
def broker_of() -> type[FakeBroker]:
    return FakeBroker


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(
    scope="module",
    params=["embedded", "real"] if REAL else ["embedded"],
)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    if request.param == "real":
        with toxiproxy_endpoint() as found:
            yield found
    else:
        with ToxiproxyThread(seed=5) as server:
            yield Endpoint(url=server.url, kind="embedded", version=ToxiproxyClient(server.url).version())


@pytest.fixture
def api(endpoint: Endpoint) -> Iterator[Api]:
    api = Api(endpoint.url)
    yield api
    for name in api("GET", "/proxies")[1]:
        assert api("DELETE", f"/proxies/{name}")[0] == 204


@pytest.fixture
def proxied(api: Api, echo: str) -> str:
    return str(api("POST", "/proxies", {"name": "p", "upstream": echo, "listen": "127.0.0.1:0"})[1]["listen"])
