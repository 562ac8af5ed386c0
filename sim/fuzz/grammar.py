"""Valid MQTT sessions out of a random generator: every packet a client may send, in both versions.

Small vocabularies on purpose: clients share ids, topics, filters and packet identifiers, so that sessions are taken
over, subscriptions overlap, messages meet subscribers, and acknowledgements meet deliveries.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from assay.conformance.wire import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from assay.sim.fuzz.scram import ScramLogin
from assay.sim.fuzz.setups import PASSWORD, USER

TOPICS = (
    "a", "a", "a/b", "a/b", "a/b/c", "b", "/", "/a", "a//b", "a/b/", "ü/日本", " ", "$data/x", "$SYS/broker/x",
    "client/c1/t", "user/ann/t", "will/t", "l/" * 11 + "l", "long/" + "x" * 300,
    "a/b/c/d", "b/c", "c", "a", "a/b", "b",
    "$queue/q1", "$queue/q1/k", "$queue/q2", "$queue/q1/$ack", "$queue/q1/$nack", "$queue/q1/$reject", "$dlq/q1",
)  # fmt: skip
FILTERS = (
    "a", "a/b", "a/#", "a/+", "+/b", "#", "+", "+/+/#", "/#", "a//b", "a/b/c", "ü/#", "$data/#", "$SYS/#",
    "$SYS/broker/clients/connected", "$share/g/a/#", "$share/g/a/b", "$share/h/#", "$share/g/$queue/q1",
    "will/#", "client/c1/#", "user/ann/#", "l/" * 11 + "#",
    "$queue/q1", "$queue/q1/#", "$queue/q1/k", "$queue/q2/#", "$dlq/q1",
)  # fmt: skip
BAD_TOPICS = ("", "l/" * 12 + "l", "a/+", "#", "$share/g/a")
BAD_FILTERS = (
    "l/" * 13 + "#",
    "",
    "a/#/b",
    "a+",
    "#a",
    "$share/g",
    "$share//a",
    "$share/+/a",
    "$share/g/",
    "$queue/q1/$ack",
    "$queue/",
)
CLIENT_IDS = ("c1", "c2", "c3", "c4", "queue-1", "ü", "x" * 60, "")
TEXTS = ("", "k", "consumer-group", "message-id", "group-id", "offset", "partition", "reason", "ü", "v" * 200, "1", "0")
_SECONDS = (0, 0, 1, 1, 2, 5, 60, 100, 3_600, 2**31, 2**32 - 1)
_T = TypeVar("_T")
_MAX_ANSWERS = 64
_PACKET_IDS = (1, 2, 3, 4, 5, 6, 7, 8, 255, 256, 65_535)


class Grammar:
    """One client's packets."""

    def __init__(self, rng: random.Random, *, with_users: bool = False) -> None:
        """``with_users``: the broker knows the user of :mod:`assay.sim.fuzz.setups`."""
        self._rng = rng
        self._with_users = with_users
        self._aliases: set[int] = set()
        self.version = 4 if rng.random() < 0.4 else 5
        self._answers: deque[Packet] = deque()
        self._scram: ScramLogin | None = None
        self._makers: list[Callable[[], Packet]] = []
        self._weights: list[int] = []
        for weight, maker in (
            (138, self._publish),
            (36, self._subscribe),
            (15, self._unsubscribe),
            (15, Pingreq),
            (3, self._disconnect),
            (9, lambda: Puback(packet_id=self._packet_id(), reason_code=self._code(0, 0, 0x80, 0x97))),
            (9, lambda: Pubrec(packet_id=self._packet_id(), reason_code=self._code(0, 0, 0x80, 0x91))),
            (18, lambda: Pubrel(packet_id=self._packet_id(), reason_code=self._code(0, 0, 0, 0x92))),
            (9, lambda: Pubcomp(packet_id=self._packet_id(), reason_code=self._code(0, 0, 0x92))),
            (1, self._connect),
        ):
            self._makers.append(maker)
            self._weights.append(weight)
        if self._five:
            self._makers.append(self._auth)
            self._weights.append(8 if with_users else 1)

    @property
    def _five(self) -> bool:
        return self.version == 5

    def first(self) -> list[bytes]:
        """The CONNECT."""
        return [encode(self._connect(), self.version)]

    def frames(self) -> list[bytes]:
        """The next packet, or a run of packets of one shape."""
        if self._answers and self._rng.random() < 0.8:
            count = self._rng.randint(1, len(self._answers))
            return [encode(self._answers.popleft(), self.version) for _ in range(count)]
        if self._rng.random() < 0.08:
            return self._run()
        (maker,) = self._rng.choices(self._makers, self._weights)
        return [encode(maker(), self.version)]

    def receive(self, packets: list[Packet]) -> None:
        """What the broker sent: sometimes it will be answered as it must be, sometimes not or wrongly."""
        for packet in packets:
            answer = self._answer(packet)
            if answer is not None and len(self._answers) < _MAX_ANSWERS and self._rng.random() < 0.85:
                self._answers.append(answer)

    # -- answers -------------------------------------------------------------------------------------------------

    def _answer(self, packet: Packet) -> Packet | None:
        match packet:
            case Publish() if packet.qos == 1:
                return Puback(packet_id=packet.packet_id)
            case Publish() if packet.qos == 2:
                return Pubrec(packet_id=packet.packet_id, reason_code=self._code(*(0,) * 12, 0x80))
            case Pubrec() if packet.reason_code < 0x80:
                return Pubrel(packet_id=packet.packet_id)
            case Pubrel():
                return Pubcomp(packet_id=packet.packet_id)
            case Auth() | Connack() if self._scram is not None:
                data = self._scram.answer(packet.properties.authentication_data or b"")
                return self._auth_with(data, 0x18) if data is not None else None
        return None

    # -- packets -------------------------------------------------------------------------------------------------

    def _connect(self) -> Connect:
        rng = self._rng
        client_id = rng.choice(CLIENT_IDS)
        clean = rng.random() < 0.4 or (client_id == "" and not self._five)
        properties = self._connect_properties() if self._five and rng.random() < 0.8 else NO_PROPERTIES
        names = (None,) * 20 + (USER,) * 10 + ("", "bob") if self._with_users else (None, None, USER, "", "bob")
        username = rng.choice(names)
        with_password = username is not None or (self._five and rng.random() < 0.2)
        return Connect(
            client_id=client_id,
            version=self.version,
            clean=clean,
            keep_alive_s=rng.choice((0, 0, 1, 10, 60, 65_535)),
            will=self._will() if rng.random() < 0.3 else None,
            username=username,
            password=rng.choice((b"", PASSWORD.encode(), PASSWORD.encode(), None)) if with_password else None,
            properties=properties,
        )

    def _connect_properties(self) -> Properties:
        rng = self._rng
        method, data = None, None
        if rng.random() < (0.4 if self._with_users else 0.02):
            self._scram = ScramLogin(USER, PASSWORD, f"nonce{rng.getrandbits(40):x}")
            method = rng.choice(("SCRAM-SHA-256",) * 20 + ("GS2", ""))
            data = self._scram.first() if rng.random() < 0.8 else None
        return Properties(
            session_expiry_interval=self._maybe(0.7, _SECONDS),
            receive_maximum=self._maybe(0.4, (1, 2, 3, 10, 65_535)),
            maximum_packet_size=self._maybe(0.2, (5, 20, 30, 40, 60, 100, 1_000, 2**32 - 1)),
            topic_alias_maximum=self._maybe(0.3, (0, 1, 10)),
            request_response_information=self._maybe(0.2, (0, 1)),
            request_problem_information=self._maybe(0.3, (0, 1)),
            user_property=self._pairs(0.2),
            authentication_method=method,
            authentication_data=data,
        )

    def _will(self) -> Will:
        rng = self._rng
        properties = NO_PROPERTIES
        if self._five and rng.random() < 0.6:
            properties = Properties(
                will_delay_interval=self._maybe(0.6, _SECONDS),
                message_expiry_interval=self._maybe(0.3, _SECONDS),
                payload_format_indicator=self._maybe(0.2, (0, 1)),
                content_type=self._maybe(0.2, TEXTS),
                response_topic=self._maybe(0.2, TOPICS),
                correlation_data=self._maybe(0.2, (b"", b"\0\1")),
                user_property=self._pairs(0.2),
            )
        qos = rng.randint(0, 2)
        return Will(
            topic=rng.choice(TOPICS), payload=self._payload(), qos=qos, retain=rng.random() < 0.3, properties=properties
        )

    def _publish(self) -> Publish:
        rng = self._rng
        qos = rng.choice((0, 0, 1, 1, 2))
        topic = rng.choice(TOPICS) if rng.random() < 0.99 else rng.choice(BAD_TOPICS)
        properties = NO_PROPERTIES
        if self._five and rng.random() < 0.5:
            alias = self._maybe(0.4, (1, 2, 3, 8) if rng.random() < 0.97 else (9, 65_535))
            if alias is not None:
                if rng.random() < (0.5 if alias in self._aliases else 0.01):
                    topic = ""
                self._aliases.add(alias)
            properties = Properties(
                topic_alias=alias,
                message_expiry_interval=self._maybe(0.3, _SECONDS),
                payload_format_indicator=self._maybe(0.2, (0, 1)),
                content_type=self._maybe(0.1, TEXTS),
                response_topic=self._maybe(0.2, TOPICS),
                correlation_data=self._maybe(0.2, (b"", b"\0\1", b"c" * 100)),
                user_property=self._pairs(0.3),
            )
        return Publish(
            topic=topic,
            payload=self._payload(),
            qos=qos,
            packet_id=self._packet_id() if qos else 0,
            retain=rng.random() < 0.15,
            dup=bool(qos) and rng.random() < 0.1,
            properties=properties,
        )

    def _run(self) -> list[bytes]:
        """Packets that differ in identifier and payload only, as a pipelining client sends them."""
        rng = self._rng
        qos, topic, size = rng.randint(0, 2), rng.choice(TOPICS), rng.choice((0, 1, 16, 100))
        first = self._packet_id()
        return [
            encode(
                Publish(
                    topic=topic,
                    payload=bytes((number & 0xFF,)) * size,
                    qos=qos,
                    packet_id=(first + number - 1) % 65_535 + 1 if qos else 0,
                ),
                self.version,
            )
            for number in range(rng.randint(2, 14))
        ]

    def _subscribe(self) -> Subscribe:
        rng = self._rng
        entries = []
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            filter_ = rng.choice(BAD_FILTERS if rng.random() < 0.02 else FILTERS)
            options = self._five and rng.random() < 0.4
            entries.append(
                Subscription(
                    filter=filter_,
                    qos=rng.randint(0, 2),
                    no_local=options and rng.random() < (0.01 if filter_.startswith("$share") else 0.4),
                    retain_as_published=options and rng.random() < 0.5,
                    retain_handling=rng.randint(0, 2) if options else 0,
                )
            )
        properties = NO_PROPERTIES
        if self._five and rng.random() < 0.4:
            identifier = (rng.choice((1, 127, 128, 268_435_455)),) if rng.random() < 0.7 else ()
            properties = Properties(subscription_identifier=identifier, user_property=self._pairs(0.3))
        return Subscribe(packet_id=self._packet_id(), subscriptions=tuple(entries), properties=properties)

    def _unsubscribe(self) -> Unsubscribe:
        filters = tuple(self._rng.choices(FILTERS, k=self._rng.randint(1, 3)))
        return Unsubscribe(packet_id=self._packet_id(), filters=filters)

    def _disconnect(self) -> Disconnect:
        if not self._five or self._rng.random() < 0.5:
            return Disconnect()
        properties = Properties(session_expiry_interval=self._maybe(0.5, _SECONDS), user_property=self._pairs(0.2))
        return Disconnect(reason_code=self._code(0, 4, 0x80, 0x81), properties=properties)

    def _auth(self) -> Auth:
        """Re-authentication, or an answer that nobody asked for."""
        if self._scram is not None and self._rng.random() < 0.7:
            self._scram = ScramLogin(USER, PASSWORD, f"again{self._rng.getrandbits(40):x}")
            return self._auth_with(self._scram.first(), 0x19)
        return self._auth_with(self._rng.choice((None, b"", b"n,,n=ann,r=x")), self._code(0, 0x18, 0x19))

    def _auth_with(self, data: bytes | None, code: int) -> Auth:
        properties = Properties(authentication_method="SCRAM-SHA-256", authentication_data=data)
        return Auth(reason_code=code, properties=properties)

    # -- fields --------------------------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        rng = self._rng
        size = (
            rng.choice((0, 0, 1, 5, 10, 10, 50, 50, 120, 128, 400)) if rng.random() < 0.97 else rng.randint(500, 9_000)
        )
        return rng.randbytes(min(size, 4)) * (size // 4 + 1) if size else b""

    def _packet_id(self) -> int:
        rng = self._rng
        return rng.choice(_PACKET_IDS) if rng.random() < 0.7 else rng.randint(1, 300)

    def _code(self, *codes: int) -> int:
        return self._rng.choice(codes) if self._five else 0

    def _maybe(self, probability: float, values: tuple[_T, ...]) -> _T | None:
        return self._rng.choice(values) if self._rng.random() < probability else None

    def _pairs(self, probability: float) -> tuple[tuple[str, str], ...]:
        rng = self._rng
        if rng.random() >= probability:
            return ()
        return tuple((rng.choice(TEXTS), rng.choice(TEXTS)) for _ in range(rng.randint(1, 3)))
