"""What a conformance case is: the :func:`case` decorator, and the :class:`CaseContext` handed to every case.

A case is an async function with a prose docstring; the first line is its title, the rest what is expected and why::

    @case("mqtt311/connect/first-packet-must-be-connect", clauses=("MQTT-3.1.0-1",), mutant="ping-before-connect")
    async def first_packet(ctx: CaseContext) -> None:
        \"\"\"A first packet other than CONNECT ends the connection.

        The case opens a connection, sends PINGREQ, and expects the end without any answer.
        \"\"\"
        connection = await ctx.open()
        connection.send(Pingreq())
        await connection.expect_close()

Rules for authors: an id is never renamed and never reused; waits are for events; where the standard leaves a choice,
every legal reaction passes; a missed SHOULD or a debated reaction is reported by :meth:`CaseContext.should` and does
not fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import pkgutil
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypedDict, TypeVar, Unpack

import msgspec

from assay.conformance.connection import FIRST_FAILURE_CODE, Connection
from assay.conformance.flow import Flow, has_wildcard, may_match_others
from assay.conformance.haste import Haste
from assay.conformance.offer import Offer
from assay.conformance.outcome import CaseFailureError, TargetUnreachableError, UnsupportedError
from assay.conformance.rules import FACES, VERSIONS, Incident, Rule, StepFailureError, longest_name_bytes, shape
from assay.conformance.targets import (
    PRIVATE,
    CapabilityValue,
    Damage,
    Endpoint,
    ProbeError,
    TargetStartError,
    Tls,
    greet,
    unharmed,
)
from assay.conformance.transcript import Transcript
from assay.conformance.websocket import WebSocketConnection
from assay.conformance.wire import (
    Connack,
    Connect,
    Packet,
    PacketType,
    Properties,
    Pubcomp,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Will,
    describe,
)
from assay.conformance.wire.websocket import SUBPROTOCOL

Level = Literal["MUST", "SHOULD", "MAY"]
_C = TypeVar("_C", bound=Connection)
_T = TypeVar("_T")
CaseFunction = Callable[["CaseContext"], Awaitable[None]]

DEFAULT_LIMIT_S = 5.0
MARKER_PREFIX = "assay-marker/"
_OF_ANOTHER_CASE = re.compile(r"assay-(marker|bystander)/|(.*/)?[0-9a-f]{15}(/|$)")
"""Topics of this suite hold a level that tells whose they are."""
_ABOUT_MATCHING = re.compile(r"MQTT-(3\.3\.2-3$|4\.7\.|1\.5\.)|Q-")
"""Statements about which topics a subscription brings."""
CLOCK_TOPIC = "$admin/clock/advance"
ABSENT = "not "
"""Begins a requirement that the target lacks a capability."""
_MAX_EXTENSIONS = 3
_MAX_GIVEN_S = 900.0
"""The most that a case may take longer because each of its answers is slow."""
_STRAGGLER_S = 2.0
"""For a message that must come, after others that need not have come before it."""
_HANDSHAKE_TIMEOUT_S = 2.0
_LONGEST_HANDSHAKE_S = 10.0
_PACKET_OVERHEAD_BYTES = 200
"""Room for everything else in a packet of a case: topic, properties, header."""
_SECOND_LOOK_S = 12.0
"""No standard says how soon a broker answers, or sends again by a timer: 5 s and 10 s are in use."""
_SHORT_LOOK_S = 1.0
"""Of a case that is known to fail: enough to tell that from a case that had no time left."""
_AFTER_A_WAIT = 0.2
"""Share of its limit that a case has left behind a wait, on a machine that may take long to wake it."""
_LONG_NAME_BYTES = 1_000
_LAG_S = 1.0
"""A broker that takes so long to greet a client is behind what a case believes of its clock."""
_SHORT_S = 60
"""Intervals up to this may pass while a broker of slow answers is asked a few things."""
_KEEP_ALIVE_S = 600
"""Of clients that cases are not about: they may be silent while a broker takes seconds for each answer to others."""
_SLOW_HANDSHAKE_S = 0.1
"""On an idle machine a handshake takes a few milliseconds."""
_CASE_ID = re.compile(r"[a-z0-9]+/[a-z0-9-]+/[a-z0-9-]+")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One conformance case and all that is said about it."""

    id: str
    """``<spec>/<area>/<slug>``; the slug states the rule."""
    title: str
    expectation: str
    clauses: tuple[str, ...]
    level: Level
    requires: tuple[str, ...]
    """Capabilities of the target without which the case says nothing; ``not <name>`` for one that it must lack."""
    mutant: str
    """The deliberately broken broker that this case must fail (``assay.conformance.mutants``)."""
    near_miss: str
    """A legal variation of the broker that this case must pass."""
    kills: tuple[str, ...] = ()
    """More broken brokers that it must fail: bugs of the same kind in other places."""
    settings: dict[str, Any] = {}
    """Configuration of the broker that the case has to itself, beyond that of its target; texts may hold {dir}."""
    judged_on: str = "reference"
    """The shipped target whose broker is broken, or varied, to prove this case."""
    together: bool = False
    """It may share its private broker, and the restarts of that, with other such cases of the same settings."""
    limit_s: float
    module: str
    run: CaseFunction

    @property
    def is_private(self) -> bool:
        """The case has a broker to itself: nobody else may suffer from its clock, settings and restarts."""
        return not PRIVATE.isdisjoint(self.requires)

    @property
    def spec(self) -> str:
        return self.id.split("/")[0]

    @property
    def is_about_a_face(self) -> bool:
        """It asks by HTTP, for which a broker of ours has a listener only where it is needed."""
        return self.spec in FACES

    @property
    def area(self) -> str:
        return self.id.split("/")[1]

    @property
    def version(self) -> int:
        """Protocol version that the case speaks unless it says otherwise."""
        return VERSIONS[self.spec]


_cases: dict[str, Case] = {}


def case(
    case_id: str,
    *,
    clauses: tuple[str, ...],
    level: Level = "MUST",
    requires: tuple[str, ...] = (),
    mutant: str = "",
    near_miss: str = "",
    kills: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    judged_on: str = "reference",
    together: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Callable[[CaseFunction], CaseFunction]:
    """Register an async function as a case. Raises :class:`ValueError` for a bad or repeated id, or no docstring.

    ``settings`` are those of a private broker; they require the capability of that name.
    """
    if settings:
        requires = tuple(dict.fromkeys((*requires, "settings")))
    if not _CASE_ID.fullmatch(case_id) or case_id.split("/")[0] not in VERSIONS:
        message = f"case id {case_id!r} is not <spec>/<area>/<slug> with a spec of {', '.join(VERSIONS)}"
        raise ValueError(message)

    def register(function: CaseFunction) -> CaseFunction:
        title, _, expectation = (inspect.getdoc(function) or "").partition("\n")
        if not title or not expectation.strip():
            message = f"{case_id}: the docstring needs a title line and, after an empty line, the expectation"
            raise ValueError(message)
        known = _cases.get(case_id)
        if known is not None and (known.module, known.title) != (function.__module__, title):
            message = f"case id {case_id} is used twice, in {known.module} and {function.__module__}"
            raise ValueError(message)
        _cases[case_id] = Case(
            id=case_id,
            title=title.strip(),
            expectation=expectation.strip(),
            clauses=clauses,
            level=level,
            requires=requires,
            mutant=mutant,
            near_miss=near_miss,
            kills=kills,
            settings=settings or {},
            judged_on=judged_on,
            together=together,
            limit_s=limit_s,
            module=function.__module__,
            run=function,
        )
        return function

    return register


def load_cases() -> dict[str, Case]:
    """All cases of the package ``assay.conformance.cases`` by id, in order of their ids."""
    package = importlib.import_module("assay.conformance.cases")
    for module in pkgutil.walk_packages(package.__path__, "assay.conformance.cases."):
        importlib.import_module(module.name)
    return {case_id: _cases[case_id] for case_id in sorted(_cases)}


class ConnectFields(TypedDict, total=False):
    """Fields of CONNECT that :meth:`CaseContext.connect` takes."""

    client_id: str
    clean: bool
    keep_alive_s: int
    will: Will | None
    username: str | None
    password: bytes | None
    properties: Properties


class CaseContext:
    """What a case works with: connections, names nobody else uses, checks, and the transcript."""

    def __init__(
        self,
        case: Case,
        endpoint: Endpoint,
        capabilities: Mapping[str, CapabilityValue],
        *,
        run_token: str,
        seed: int,
        patience_s: float | None = None,
        looks_again: bool = True,
        restart: Callable[[float, Damage], Awaitable[Endpoint]] | None = None,
        change: Callable[[Mapping[str, Any], bool], Awaitable[None]] | None = None,
        pid: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``run_token`` (0-9, a-z) keeps the names of two runs apart.

        ``looks_again``: a wait that ends without its event gets a good deal more time, see :meth:`second_look`.
        ``restart`` kills a private broker, does something, and starts it again, its clock so far ahead.
        """
        self.case, self.endpoint, self.capabilities = case, endpoint, capabilities
        self.mqtt_version = case.version
        """Of its MQTT clients, unless the case says otherwise."""
        self.transcript = Transcript()
        self.rng = random.Random(f"{seed}/{case.id}")
        self.missed: list[str] = []
        """SHOULDs missed and debated reactions seen."""
        self.incidents: list[Incident] = []
        """Rules seen broken that the case is not about."""
        self.sent_raw = False
        """Malformed bytes were sent: the runner checks that the broker still takes connections."""
        self.resends_after_s = int(capabilities.get("resends_after_s", 0))
        """How long the broker may take to send again what a client that is back has not acknowledged."""
        waits = self.resends_after_s if "persistent_sessions" in case.requires else 0
        self.limit_s = case.limit_s + waits
        self.patience_s = self.limit_s if patience_s is None else patience_s + waits
        self.stretch = 1
        """How much longer than usual the intervals are that the case sets: see :mod:`assay.conformance.stall`."""
        self.is_timed = case.spec == "queue"
        """The verdict depends on the broker's timers: queues have many."""
        self.greeting_s = 0.0
        """The longest that the broker took for a CONNACK."""
        self.delivery_s = 0.0
        """What it took for a message, where that was asked."""
        self._asked: set[str] = set()
        self._last_publish: Publish | None = None
        self.flow = Flow()
        self._arrived = asyncio.Event()
        """A message of the case has come, on any connection."""
        self.persistent_clients: dict[str, int] = {}
        """Client ids whose session may outlive the case, with the protocol version."""
        self.retained_topics: set[str] = set()
        self._token = f"{run_token}{zlib.crc32(case.id.encode()):08x}"
        self._connections: list[Connection] = []
        self._names = 0
        self._restart = restart
        self.change = change
        """Gives the broker other settings; whether at once, or from the next restart on."""
        self.pid = pid
        """Of the broker's process, as it is now; None for one that was not started for the run."""
        self.lives = 1
        """Of the broker, as far as the case has ended them."""
        self.haste = Haste(self)
        self.offer = Offer(case.requires, capabilities)
        self.settled: dict[tuple[str, str, int], int] = {}
        """Client, topic and hash of the payload of what was answered by PUBACK, to the life of the broker."""
        self.forgives_pubacks = True
        self._clock: Connection | None = None
        self._ahead_s = 0.0
        self._deadline = asyncio.get_running_loop().time() + self.limit_s
        self._extensions = 0
        self._look_until: float | None = None
        self._hurried = patience_s is not None
        self._look_s = _SECOND_LOOK_S if looks_again else _SHORT_LOOK_S
        self._to_give_s = _MAX_GIVEN_S
        self._limit: asyncio.Timeout | None = None

    # Names

    def client_id(self) -> str:
        """A fresh client identifier: at most 23 characters of 0-9 and a-z, which every server must accept."""
        self._names += 1
        return f"{self._token}{self._names}"

    def topic(self, path: str = "t") -> str:
        """A topic (or filter) below a level that only this case uses."""
        return f"assay/{self._token}/{path}"

    def room_bytes(self, wanted: int) -> int:
        """How much of a packet a long topic or payload may take: what is wanted, or less where the target says so."""
        maximum = int(self.capabilities.get("maximum_packet_size", 0))
        return min(wanted, maximum - _PACKET_OVERHEAD_BYTES) if maximum else wanted

    # Connections

    async def open(self, *, version: int | None = None, name: str = "") -> Connection:
        """A network connection without CONNECT. Raises :class:`TargetUnreachableError`."""
        connection = Connection(self, name or f"c{len(self._connections) + 1}", version or self.mqtt_version)
        endpoint = self.endpoint
        await self._establish(connection, endpoint.host, endpoint.port, endpoint.tls)
        return connection

    async def _establish(self, connection: Connection, host: str, port: int, tls: Tls | None) -> None:
        context = None if tls is None else tls.context()
        server_name = None if tls is None else tls.server_name or host
        begin = asyncio.get_running_loop().create_connection
        try:
            await self.patiently(
                lambda: begin(lambda: connection, host, port, ssl=context, server_hostname=server_name),
                looks_again=False,
            )
        except OSError as error:
            what = "timed out" if isinstance(error, TimeoutError) else error or type(error).__name__
            message = f"cannot connect to {host}:{port}: {what}"
            raise TargetUnreachableError(message) from error
        self._connections.append(connection)

    async def open_websocket(
        self, *, version: int | None = None, name: str = "", subprotocols: tuple[str, ...] | None = (SUBPROTOCOL,)
    ) -> WebSocketConnection:
        """A WebSocket connection without CONNECT, upgraded with these sub-protocols on offer; None = no handshake yet.

        Raises :class:`TargetUnreachableError`; the case must require ``websocket_url``.
        """
        name = name or f"c{len(self._connections) + 1}"
        url = str(self.capabilities["websocket_url"])
        connection = WebSocketConnection(self, name, version or self.mqtt_version, url)
        tls = (self.endpoint.tls or Tls()) if connection.is_secure else None
        await self._establish(connection, connection.host, connection.port, tls)
        if subprotocols is not None:
            connection.send_handshake(subprotocols=subprotocols)
            await connection.expect_upgrade()
        return connection

    def connect_packet(self, *, version: int | None = None, **fields: Unpack[ConnectFields]) -> Connect:
        """A legal CONNECT with a fresh client id and the target's credentials, unless ``fields`` say otherwise."""
        fields.setdefault("client_id", self.client_id())
        if "clock" in self.case.requires:
            fields.setdefault("keep_alive_s", 0)  # a clock that jumps is no reason to lose the connection
        fields.setdefault("keep_alive_s", _KEEP_ALIVE_S)
        if "username" not in fields and self.endpoint.username is not None:
            fields["username"] = self.endpoint.username
            if self.endpoint.password is not None:
                fields.setdefault("password", self.endpoint.password.encode())
        return Connect(version=version or self.mqtt_version, **fields)

    async def connect(
        self, *, version: int | None = None, name: str = "", **fields: Unpack[ConnectFields]
    ) -> Connection:
        """Connect and expect to be accepted; the CONNACK is in ``connection.connack``."""
        packet = self.connect_packet(version=version, **fields)
        return await self.connect_over(await self.open(version=packet.version, name=name), packet)

    async def connect_over(self, connection: _C, packet: Connect) -> _C:
        """Send CONNECT on an open connection and expect to be accepted."""
        await self.haste.before_a_step()
        connection.client_id = packet.client_id
        connection.send(packet)
        began = time.monotonic()
        connection.connack = await connection.expect(Connack)
        self.greeting_s = max(self.greeting_s, time.monotonic() - began)
        imposed_s = connection.connack.properties.server_keep_alive or 0
        self.is_timed |= 0 < imposed_s < _SHORT_S
        if imposed_s and packet.keep_alive_s in (0, _KEEP_ALIVE_S):  # the case has no opinion about it
            connection.keep_alive(imposed_s / 2)
        if connection.connack.reason_code != 0:
            raise connection.step_failed(Rule.ACCEPT, f"expected to be accepted; seen {describe(connection.connack)}")
        self.offer.check_session(packet, connection.connack)
        if not connection.client_id and connection.connack.properties.assigned_client_identifier:
            connection.client_id = connection.connack.properties.assigned_client_identifier
        return connection

    def will_send(self, packet: Packet, client_id: str = "", *, topic: str = "", times: int = 1) -> None:
        """Note what must be cleaned up after the case, and what must come of it; called for every packet sent.

        ``topic``: that of a message, where an alias stands for it.
        """
        if isinstance(packet, Connect):
            expiry_s = packet.properties.session_expiry_interval or 0
            delay_s = 0 if packet.will is None else packet.will.properties.will_delay_interval or 0
            self.is_timed |= any(0 < wait_s < _SHORT_S for wait_s in (packet.keep_alive_s, expiry_s, delay_s))
            if not packet.clean or packet.properties.session_expiry_interval:
                self.persistent_clients[packet.client_id] = packet.version
                self._asked.add("kept session")
            if packet.will is not None:
                self.flow.leaves_will(packet.will)
                self._asked.add("will")
                if packet.will.retain:
                    self.retained_topics.add(packet.will.topic)
        elif isinstance(packet, Subscribe):
            self.flow.subscribes(client_id, packet)
            self._asked |= {"shared" for entry in packet.subscriptions if entry.filter.startswith("$share/")}
        elif isinstance(packet, Publish):
            self.flow.publishes(packet, topic or packet.topic, times, client_id)
            self.is_timed |= packet.properties.message_expiry_interval is not None
            if not packet.topic.startswith(MARKER_PREFIX):
                self._last_publish = packet
            if packet.retain and packet.payload:
                self.retained_topics.add(packet.topic)

    def delivery_shape(self) -> frozenset[str]:
        """What is special about the message that the case waits for, as far as that can be told."""
        return frozenset(self._asked) | (frozenset() if self._last_publish is None else shape(self._last_publish))

    async def messages_before_marker(
        self, publisher: Connection, subscriber: Connection, *, qos: int = 1, at_least: int = 0, ack: bool = True
    ) -> list[Packet]:
        """Everything that ``subscriber`` gets before a marker which ``publisher`` sends now, each acknowledged.

        A server that has one message under way at a time sends the marker only after that. Messages of other topics and
        QoS may come after it, too: of those that must come, the case says how many (``at_least``). Without ``ack`` the
        marker must travel at QoS 0, and the caller acknowledges what is returned, if it wants to go on. On a broker
        that does not take ``qos``, the marker travels at QoS 0.
        """
        qos = qos if qos == 0 or self.capabilities.get(f"qos{qos}", True) else 0
        self._names += 1
        topic = f"{MARKER_PREFIX}{self._token}/{self._names}"
        await subscriber.subscribe(Subscription(filter=topic, qos=qos))
        marker = asyncio.create_task(publisher.publish(topic, b"marker", qos=qos))
        before: list[Packet] = []
        marked = False
        count = 0
        try:
            while not marked or count < at_least:
                try:
                    if not marked:
                        packet = await subscriber.receive_marker(qos)
                    elif (straggler := await subscriber.receive("a message", within_s=_STRAGGLER_S)) is None:
                        break
                    else:
                        packet = straggler
                except CaseFailureError:
                    if marked:
                        break  # the caller says what is missing
                    if marker.done():
                        marker.result()  # the marker itself went wrong
                    raise
                if isinstance(packet, Publish) and packet.topic == topic:
                    marked = True
                else:
                    before.append(packet)
                    count += isinstance(packet, Publish)
                if isinstance(packet, Publish) and (ack or packet.topic == topic):
                    await subscriber.acknowledge(packet)
                elif isinstance(packet, Pubrel) and ack:
                    subscriber.send(Pubcomp(packet_id=packet.packet_id))
            await marker
        finally:
            marker.cancel()
        return before

    async def expect_no_message(self, publisher: Connection, subscriber: Connection) -> None:
        """``subscriber`` must get nothing of what ``publisher`` has sent so far."""
        for packet in await self.messages_before_marker(publisher, subscriber):
            self.fail(f"{subscriber.name}: expected no message; seen {describe(packet)}")

    @property
    def greeted(self) -> Endpoint:
        """Where the broker speaks what the case is about."""
        return self.endpoint

    async def delete_leftovers(self) -> None:
        """What the protocol of the case leaves in the broker beside sessions and retained messages."""

    @property
    def connected(self) -> bool:
        """A network connection was opened."""
        return bool(self._connections)

    @property
    def disturbed(self) -> bool:
        """Malformed bytes were sent, or a connection has ended: nobody else may have suffered from that."""
        return self.sent_raw or any(connection.closed for connection in self._connections)

    def is_foreign(self, topic: str, client_id: str, sent_raw: bool) -> bool:
        """Whether this client surely never subscribed to the topic.

        It is another case's (or the bystander's), and nobody here asked for such topics; or it is this case's, and this
        client has not named it. A case that is about who gets messages sees all its own.
        """
        if self._token not in topic.split("/"):
            return _OF_ANOTHER_CASE.match(topic) is not None and not any(map(may_match_others, self.flow.all_filters()))
        if sent_raw or not client_id or any(map(_ABOUT_MATCHING.match, self.case.clauses)):
            return False
        filters = self.flow.filters_of(client_id)
        return topic not in filters and not any(map(has_wildcard, filters))

    def is_of_another_case(self, frame: bytes) -> bool:
        """Whether a packet that cannot be read is a message of another case: that of one which sends such properties,
        and who has asked for everything may get it."""
        at = next((index for index in range(1, len(frame)) if frame[index] < 0x80), len(frame)) + 1
        topic = frame[at + 2 : at + 2 + int.from_bytes(frame[at : at + 2], "big")].decode(errors="replace")
        is_publish = frame[0] >> 4 == PacketType.PUBLISH
        return is_publish and self._token not in topic.split("/") and bool(_OF_ANOTHER_CASE.match(topic))

    # Checks

    def fail(self, text: str) -> NoReturn:
        """The target violates a MUST: say what was expected and what was seen."""
        raise CaseFailureError(text)

    def must(self, condition: bool, text: str) -> None:
        """Fail with ``text`` unless ``condition`` holds."""
        if not condition:
            raise CaseFailureError(text)

    def step(self, rule: Rule, condition: bool, text: str, *, soft: bool = False) -> None:
        """A step that other cases are about must work: unless ``condition`` holds, the case fails or is blocked."""
        if not condition:
            raise StepFailureError(Incident(rule=rule, text=text, soft=soft))

    @contextlib.contextmanager
    def own_point(self) -> Iterator[None]:
        """A step that fails in here, such as a publish that is refused, is what the case is about."""
        try:
            yield
        except StepFailureError as error:
            self.fail(str(error))

    def breach(self, rule: Rule, text: str) -> None:
        """A rule was seen broken that does not keep the case from going on, unless it is about that rule."""
        if rule.is_subject_of(self.case.id, self.case.clauses):
            self.fail(text)
        self.note_incident(rule, text)

    def note_incident(
        self, rule: Rule, text: str, shape: frozenset[str] = frozenset(), statements: tuple[str, ...] = ()
    ) -> None:
        """A rule was seen broken, and the case goes on; the first of a kind is kept."""
        if all(incident.rule is not rule for incident in self.incidents):
            self.incidents.append(Incident(rule=rule, shape=shape, text=text, statements=statements))

    def should(self, condition: bool, text: str) -> None:
        """Report ``text`` as a missed SHOULD or a debated reaction unless ``condition`` holds (``non_strict``)."""
        if not condition:
            self.missed.append(text)

    def unsupported(self, text: str) -> NoReturn:
        """The target cannot be asked this (a limit or capability that its CONNACK states)."""
        raise UnsupportedError(text)

    def allow_refusal(self, request: Packet | None, answer: Packet | None) -> None:
        """Topics and filters may have 65 535 bytes (4.7.3); no clause has a server keep such long ones for anybody.

        Ends the case as unsupported where the request had a long one, and the answer refuses it; None: the end of the
        connection does.
        """
        longest = longest_name_bytes(request)
        code = max(getattr(answer, "reason_codes", None) or (getattr(answer, "reason_code", 0),))
        if longest > _LONG_NAME_BYTES and (answer is None or code >= FIRST_FAILURE_CODE):
            how = "it ends the connection" if answer is None else describe(answer)
            self.unsupported(f"the broker refuses a topic or filter of {longest} bytes: {how}")

    def note(self, text: str) -> None:
        """A line for people in the transcript."""
        self.transcript.add("", "event", decoded=text)

    def look_at(self, connection: Connection, packet: Publish) -> None:
        """Note what a client got; called for every message."""
        if self._token in packet.topic and self.case.spec != "queue":
            self.flow.arrives(connection.name, connection, connection.client_id, packet)
            self._arrived.set()

    async def read_on(self) -> None:
        """Of a case that has failed: await the messages that others have overtaken, for as long as any other packet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.remaining_s()):
                while self.flow.misses_an_earlier_one():
                    self._arrived.clear()
                    await self._arrived.wait()

    def other_reasons(self) -> list[Incident]:
        """Why a case that fails may have failed: requests without answers, connections and messages that went wrong."""
        found = [incident for connection in self._connections for incident in connection.other_reasons()]
        return found + self.flow.reasons()

    @property
    def answered_again(self) -> Incident | None:
        """An answer that came twice, where the case is about such answers."""
        return next((again for connection in self._connections for again in connection.answered_again), None)

    @property
    def lag(self) -> str:
        """Why nothing that went wrong says anything of the broker; empty where it does."""
        what, took_s = max(("CONNACK", self.greeting_s), ("message", self.delivery_s), key=lambda each: each[1])
        if not self.is_timed or took_s < _LAG_S:
            return ""
        return f"a {what} took {took_s:.1f} s, and the verdict depends on the broker's timers"

    async def measure_a_delivery(self) -> None:
        """Of a case that has failed, and depends on timers: does the broker take long over its plainest message?"""
        recorded = len(self.transcript.lines)
        try:
            async with self.time_limit(self.limit_s):
                client = await self.connect(name="itself")
                await client.subscribe(self.topic("itself"))
                began = time.monotonic()
                await client.publish(self.topic("itself"))
                await client.expect_publish(self.topic("itself"))
                self.delivery_s = time.monotonic() - began
        except (CaseFailureError, TargetUnreachableError, TimeoutError, OSError) as error:
            self.note(f"how long a message takes could not be told: {error}")
        finally:
            del self.transcript.lines[recorded:]

    # The broker that a case has to itself

    async def advance(self, seconds: float) -> None:
        """Move the broker's clock forward; what came due has been done, and sent, before this returns."""
        if self._clock is None:
            self._clock = await self.connect(version=5, name="clock")
        self._ahead_s += seconds
        await self._clock.publish(CLOCK_TOPIC, repr(seconds).encode(), qos=1)

    def due_in(self, wait_s: float) -> float:
        """When, by the broker's clock, what is asked for now comes at the earliest; for ``expect_nothing``."""
        return self.broker_time_s + wait_s

    @property
    def broker_time_s(self) -> float:
        """Seconds since some time: the broker's clock as it was moved, and as it went on by itself meanwhile."""
        return time.monotonic() + self._ahead_s

    @property
    def data_dir(self) -> Path:
        """The folder of the broker's data; the case must require ``data_dir``."""
        return Path(str(self.capabilities["data_dir"]))

    async def restart(self, damage: Damage = unharmed) -> None:
        """kill -9 the broker and start it again on its data; the clock goes on, the connections are lost.

        ``damage`` is done to the data while it is dead.
        Other cases may share the broker and be waited for: the time limit of this one begins anew.
        """
        if self._restart is None:
            self.unsupported("the broker is not private to this case")
        if self._limit is not None:
            self._limit.reschedule(None)
        try:
            self.endpoint = await self._restart(self._ahead_s, damage)
        except TargetStartError as error:
            text = f"the broker was killed, and does not start again: {error}"
            raise StepFailureError(Incident(rule=Rule.STARTS_AGAIN, text=text, soft=True)) from error
        finally:
            self._move_deadline(asyncio.get_running_loop().time() + self.limit_s)
        for connection in self._connections:
            connection.close()
        self._clock = None
        self.lives += 1

    def is_forgiven(self, client_id: str, message: Publish, life: int) -> bool:
        """Whether a QoS 1 message may come again in this life of the broker: nothing answers a PUBACK, so that one may
        be lost with the broker that has it (4.3.2: at least once)."""
        before = self.settled.get((client_id, message.topic, hash(message.payload)), life)
        return self.forgives_pubacks and before < life

    # Time

    def remaining_s(self, within_s: float | None = None) -> float:
        """How long a wait may take: ``within_s`` or the patience of the run, but not beyond the limit of the case.

        What the case itself asks for, such as silence for twice as long as its broker took for a CONNACK, moves that.
        """
        if within_s is not None and within_s <= self._to_give_s:
            self._move_deadline(asyncio.get_running_loop().time() + within_s + _AFTER_A_WAIT * self.limit_s)
        # Waits give up a little before the hard limit, so that a failure says what it was waiting for.
        left_s = self._deadline - asyncio.get_running_loop().time() - 0.05 * self.limit_s
        return max(0.0, min(self.patience_s if within_s is None else within_s, left_s))

    def time_limit(self, seconds: float) -> asyncio.Timeout:
        """Begin a time limit, to be entered by ``async with``; it can grow by :meth:`more_time_for_a_slow_broker`."""
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._limit = asyncio.timeout_at(self._deadline)
        return self._limit

    async def more_time_for_a_slow_broker(self) -> bool:
        """A wait has ended without its event: is the broker (or the whole machine) just slow?

        Asks for a handshake on a connection of its own. If that takes long too, the case gets its time once more, a few
        times at most, and True is returned. Whatever was under way before the handshake has arrived after it.
        """
        loop = asyncio.get_running_loop()
        if self._extensions >= _MAX_EXTENSIONS or self._limit is None:
            return False
        began = loop.time()
        timeout_s = min(max(_HANDSHAKE_TIMEOUT_S, 2 * self.greeting_s), _LONGEST_HANDSHAKE_S)
        self._move_deadline(began + 2 * timeout_s)
        try:
            await asyncio.to_thread(greet, self.greeted, self.case.version, timeout_s=timeout_s)
        except ProbeError:
            return False
        took_s = loop.time() - began
        if took_s < _SLOW_HANDSHAKE_S:
            return False
        self._extensions += 1
        self._move_deadline(loop.time() + self.limit_s)
        self.note(f"a handshake took {took_s:.2f} s: the broker or the machine is slow, more time is given")
        return True

    async def patiently(self, wait: Callable[[], Awaitable[_T]], *, looks_again: bool = True) -> _T:
        """What a wait on a socket brings, with all the time that a slow broker gets. Raises :class:`TimeoutError`.

        A wait that is cut is begun anew.
        """
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self.remaining_s()):
                    found = await wait()
            except TimeoutError:
                if not (await self.more_time_for_a_slow_broker() or (looks_again and self.second_look())):
                    raise
            else:
                self.give_back(time.monotonic() - began)
                return found

    def second_look(self) -> bool:
        """A wait has ended without its event: is there time left in which it may still come?

        The clock for this begins once in a case, and anew behind what came late; never in a run with less patience than
        the cases have.
        """
        now = asyncio.get_running_loop().time()
        if self._hurried or self._limit is None:
            return False
        if self._look_until is None:
            self._look_until = now + self._look_s
            self._move_deadline(self._look_until + self.case.limit_s)
            self.note(f"no standard says how soon a broker answers: {self._look_s:g} s more are given")
        return now < self._look_until

    @property
    def looked_on(self) -> str:
        """What was added to the patience of the case, for a failure's text."""
        return "" if self._look_until is None else f", and {self._look_s:g} s more"

    def give_back(self, waited_s: float) -> None:
        """The broker took so long over something that did come: no standard bounds the sum of many such waits.

        What is slow makes all slow: behind such a wait the case has its whole time again.
        """
        given_s = min(waited_s, self._to_give_s)
        self._to_give_s -= given_s
        begins_anew = asyncio.get_running_loop().time() + self.limit_s if given_s >= _LAG_S else 0.0
        if begins_anew:
            self._look_until = None  # it may take as long over the next one
        self._move_deadline(max(self._deadline + given_s, begins_anew))

    def _move_deadline(self, deadline: float) -> None:
        if self._limit is not None:
            self._deadline = max(deadline, self._deadline)
            self._limit.reschedule(self._deadline)

    def close(self) -> None:
        """Drop every connection of the case."""
        for connection in self._connections:
            connection.close()
