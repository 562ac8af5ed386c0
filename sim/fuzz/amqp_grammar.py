"""Conversations of AMQP 0.9.1 out of a random generator: every method that a client may send, content, field tables.

Small vocabularies on purpose, as in :mod:`assay.sim.fuzz.grammar`: clients share queues and exchanges, so that what one
publishes meets the consumers of another, and acknowledgements meet deliveries.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from assay.conformance.wire.amqp091 import (
    METHODS,
    PROTOCOL_HEADER,
    Arrival,
    FrameType,
    Method,
    Typed,
    encode_body,
    encode_frame,
    encode_header,
    encode_method,
)
from assay.sim.fuzz.setups import PASSWORD, USER

QUEUES = ("q1", "q1", "q1", "q2", "q2", "q3", "q3", "q4", "q4", "x1", "ü", "n" * 200, "")
EXCHANGES = (
    *("", "", "", "", "e1", "e2", "e3", "e4", "e1", "e2", "e3", "e4"),
    *("amq.topic", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "e5"),
)
KINDS = ("direct", "fanout", "topic", "headers") * 4 + ("x-unknown",)
KEYS = ("q1", "q2", "a", "a.b", "a.*", "#", "a.#.b", "", "k" * 255, "q3", "q1", "*.*")
_NAMES = ("a", "b", "x-match", "CC", "BCC", "x-death", "ü", "n" * 128, "")
_LENGTHS = (0, 1, 10, 100, 100, 100, 100, 100, 1_000, 1_000, 4_000, 9_000, 19_000)
_WRONG = 0.03
"""Share of what the broker has to refuse, beside what is damaged."""
_TX_CHANNELS = (3, 4)
_CONFIRM_CHANNELS = (2, 5)
_DECLARED: dict[str, dict[str, Any]] = {
    "q1": {"durable": True},
    "q2": {},
    "q3": {"durable": True, "arguments": {"x-dead-letter-exchange": "e2", "x-max-length": 10}},
    "q4": {"durable": True, "arguments": {"x-max-priority": 5, "x-delivery-limit": 2, "x-message-ttl": 60_000}},
    "x1": {"exclusive": True},
    "ü": {"arguments": {"x-max-length": 3, "x-overflow": "reject-publish"}},
}
"""As whom everybody declares these queues, mostly."""
_KINDS_OF = {"e1": "direct", "e2": "fanout", "e3": "topic", "e4": "headers"}
_INTEGERS = (0, 1, -1, 2, 5, 127, 128, 255, 2**15, 2**31 - 1, -(2**31), 2**31, 2**63 - 1)
_NUMBERS = {"b": 7, "B": 8, "s": 15, "u": 16, "I": 31, "i": 32, "l": 63}
"""Letter -> bits."""
_QUEUE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-message-ttl": (0, 1, 50, 1_000, 60_000, -1, "1"),
    "x-expires": (1, 500, 60_000, 0),
    "x-max-length": (0, 1, 3, 10, -5),
    "x-max-length-bytes": (1, 200, 5_000),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", 7),
    "x-delivery-limit": (0, 1, 3),
    "x-max-priority": (1, 5, 10, 255, 300),
    "x-single-active-consumer": (True, False, 1),
    "x-dead-letter-exchange": ("", "e1", "e2", "amq.fanout"),
    "x-dead-letter-routing-key": ("q1", "q2", "a.b"),
    "x-queue-type": ("classic", "quorum", "stream", "other"),
    "x-unknown": (1,),
}
_HEARTBEAT = encode_frame(FrameType.HEARTBEAT, 0)
_T = TypeVar("_T")
Script = list[bytes]


class AmqpGrammar:
    """One client's frames."""

    def __init__(self, rng: random.Random, *, with_users: bool = False) -> None:
        self._rng = rng
        self._with_users = with_users
        self._unsettled: dict[int, list[int]] = {}
        """By channel: tags of what it was given, ascending."""
        self._gets: dict[int, deque[bool]] = {}
        """By channel: whether what it asked for needs no acknowledgement."""
        self._answers: deque[bytes] = deque()
        self._channels: list[int] = []
        """Open, as far as it knows."""
        self._frame_max = rng.choice((4_096, 4_096, 8_192))
        self._makers: Sequence[tuple[int, Callable[[], bytes]]] = (
            (60, self._publish),
            (12, self._consume),
            (10, self._get),
            (24, self._settle),
            (12, self._declare_queue),
            (8, self._declare_exchange),
            (8, self._bind),
            (3, self._delete),
            (4, self._mode),
            (8, self._end_transaction),
            (5, self._qos),
            (3, self._recover),
            (3, self._cancel),
            (2, self._flow),
            (4, self._channel),
            (2, self._other),
            (2, lambda: _HEARTBEAT),
            (1, self._connection),
            (6, self._interleaved),
        )

    # -- the stream --------------------------------------------------------------------------------------------------

    def first(self) -> list[bytes]:
        """The handshake, without waiting for anything: one part after the other."""
        rng = self._rng
        tables: dict[str, Any] = {"capabilities": {"basic.nack": True, "consumer_cancel_notify": rng.random() < 0.7}}
        if rng.random() < 0.7:
            tables["capabilities"]["authentication_failure_close"] = True
        if rng.random() < 0.3:
            tables["x"] = self._value(3)
        user, password = (USER, PASSWORD) if self._with_users and rng.random() < 0.8 else ("guest", "guest")
        login = f"\0{user}\0{password}".encode()
        parts = [
            PROTOCOL_HEADER,
            self._method(0, "connection.start-ok", client_properties=tables, mechanism="PLAIN", response=login,
                         locale="en_US"),
            self._method(0, "connection.tune-ok", channel_max=6, frame_max=self._frame_max,
                         heartbeat=self._pick((0, 0, 1, 5, 60))),
            self._method(0, "connection.open", virtual_host="/"),
        ]  # fmt: skip
        parts += [self._open(channel) for channel in rng.choice(((1,), (1, 2), (1, 3), (3,), (1, 2, 3, 4)))]
        queues = rng.sample([name for name in _DECLARED if name != "x1"], rng.randint(1, 4))
        parts += [self._method(self._channels[0], "queue.declare", queue=name, **_DECLARED[name]) for name in queues]
        parts += [self._declare_known_exchange(name) for name in rng.sample(list(_KINDS_OF), rng.randint(0, 3))]
        return parts

    def _open(self, channel: int) -> bytes:
        """A channel, in its mode."""
        if channel not in self._channels:
            self._channels.append(channel)
        self._unsettled.pop(channel, None)
        self._gets.pop(channel, None)
        opened = self._method(channel, "channel.open")
        if channel in _TX_CHANNELS:
            return opened + self._method(channel, "tx.select")
        return opened + (self._method(channel, "confirm.select") if channel in _CONFIRM_CHANNELS else b"")

    def frames(self) -> list[bytes]:
        """The next thing that it does."""
        rng = self._rng
        if self._answers and rng.random() < 0.9:
            return [self._answers.popleft()]
        weights = [weight for weight, _ in self._makers]
        ((_, maker),) = rng.choices(self._makers, weights)
        return [maker() for _ in range(rng.choice((1, 1, 1, 1, 2, 5)))]

    def receive(self, heard: list[Arrival]) -> None:
        """What the broker said: tags to acknowledge, closes to answer."""
        for each in heard:
            if each.name == "basic.deliver":
                if not each["consumer-tag"].startswith("n"):
                    self._unsettled.setdefault(each.channel, []).append(each.tag)
            elif each.name in ("basic.get-ok", "basic.get-empty"):
                asked = self._gets.get(each.channel)
                needs_none = asked.popleft() if asked else False
                if each.name == "basic.get-ok" and not needs_none:
                    self._unsettled.setdefault(each.channel, []).append(each.tag)
            elif each.name == "channel.close":
                self._answers.append(self._method(each.channel, "channel.close-ok") + self._open(each.channel))
            elif each.name == "connection.close":
                self._answers.append(self._method(0, "connection.close-ok"))

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _pick(self, values: Sequence[_T]) -> _T:
        return self._rng.choice(values)

    def _at(self) -> int:
        """Mostly a channel that it opened."""
        rng = self._rng
        if self._channels and rng.random() > _WRONG / 10:
            return rng.choice(self._channels)
        return rng.choice((0, 2, 6, 7, 65_535))

    def _is_wrong(self) -> bool:
        return self._rng.random() < _WRONG

    def _bit(self, share: float = 0.3) -> bool:
        return self._rng.random() < share

    @staticmethod
    def _method(channel: int, name: str, **values: Any) -> bytes:
        return encode_method(channel, Method(name, **values))

    def _value(self, depth: int) -> Any:
        """Of any type a field table may have."""
        rng = self._rng
        letter = rng.choice("tbBsuIilfdDSxFATV" if depth > 0 else "tbBsuIilfdDSxTV")
        bits = _NUMBERS.get(letter)
        if bits is not None:
            low = 0 if letter in "Bui" else -(1 << bits)
            high = (1 << bits) - 1
            return Typed(letter, min(max(rng.choice((low, high, *_INTEGERS)), low), high))
        if letter == "F":
            return Typed(letter, self._table(depth - 1))
        if letter == "A":
            return Typed(letter, [self._value(depth - 1) for _ in range(rng.randint(0, 4))])
        values: dict[str, Any] = {
            "t": rng.random() < 0.5,
            "f": rng.choice((0.0, -1.5, float("inf"), float("nan"))),
            "d": rng.choice((0.0, 1e300, float("-inf"), float("nan"))),
            "D": (rng.choice((0, 2, 255)), rng.choice((0, 12_345, -7))),
            "S": rng.choice((b"", b"text", "ü".encode(), b"\xff\xfe", b"\0", b"t" * 300)),
            "x": rng.randbytes(rng.choice((0, 3, 200))),
            "T": rng.choice((0, 1_700_000_000, 2**64 - 1)),
            "V": None,
        }
        return Typed(letter, values[letter])

    def _table(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.005:
            deep: Any = {}
            for _ in range(rng.choice((20, 32, 60, 300))):
                deep = {"d": deep} if rng.random() < 0.5 else Typed("A", [deep])
            return {"deep": deep}
        if rng.random() < 0.002:
            return {f"f{number}": number for number in range(1_100)}
        return {rng.choice(_NAMES): self._value(depth) for _ in range(rng.choice((0, 1, 1, 2, 5)))}

    def _arguments(self, known: dict[str, tuple[Any, ...]] | None = None) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.5:
            return {}
        found = self._table(2) if rng.random() < 0.2 else {}
        for _ in range(rng.choice((1, 1, 2, 3)) if known else 0):
            name = rng.choice(list(known or ()))
            found[name] = rng.choice((known or {})[name])
        return found

    def _properties(self) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.4:
            return {}
        every: dict[str, Callable[[], Any]] = {
            "content_type": lambda: rng.choice(("text/plain", "", "\0", "c" * 255)),
            "content_encoding": lambda: "gzip",
            "headers": lambda: self._headers(),
            "delivery_mode": lambda: rng.choice((1, 2, 2, 0, 255)),
            "priority": lambda: rng.choice((0, 1, 5, 255)),
            "correlation_id": lambda: "c" * rng.choice((0, 1, 255)),
            "reply_to": lambda: rng.choice(("q1", "a/+", "")),
            "expiration": lambda: rng.choice(
                ("x", "-1", "99999999999") if self._is_wrong() else ("0", "1", "1000", "60000")
            ),
            "message_id": lambda: "m",
            "timestamp": lambda: rng.choice((0, 1_700_000_000, 2**64 - 1)),
            "type": lambda: "t",
            "user_id": lambda: "other" if self._is_wrong() else USER if self._with_users else "guest",
            "app_id": lambda: "a",
            "reserved": lambda: "r",
        }
        return {name: every[name]() for name in rng.sample(list(every), rng.choice((1, 1, 2, 4, 14)))}

    def _headers(self) -> dict[str, Any]:
        rng = self._rng
        found = self._table(3)
        if not self._is_wrong():
            found.pop("CC", None)
            found.pop("BCC", None)
        if rng.random() < 0.2:
            found[rng.choice(("CC", "BCC"))] = [rng.choice(KEYS) for _ in range(rng.randint(0, 4))]
        return found

    # -- what it does --------------------------------------------------------------------------------------------------

    def _content(self, channel: int) -> list[bytes]:
        """A publish, frame by frame."""
        rng = self._rng
        body = bytes(rng.choice(_LENGTHS))
        exchange = self._pick(EXCHANGES)
        method = self._method(
            channel,
            "basic.publish",
            exchange=exchange,
            routing_key=self._pick(KEYS if exchange else QUEUES),
            mandatory=self._bit(),
            immediate=self._bit(_WRONG / 10),
        )
        frames = [method, encode_header(channel, len(body), self._properties())]
        size = rng.choice((self._frame_max - 8, self._frame_max - 8, 700, 1))
        size = size if len(body) // size < 40 else self._frame_max - 8
        frames += [encode_body(channel, body[at : at + size]) for at in range(0, len(body), size)]
        if rng.random() < 0.01:
            frames.insert(rng.randrange(1, len(frames) + 1), encode_body(channel, b""))
        return frames

    def _publish(self) -> bytes:
        return b"".join(self._content(self._at()))

    def _interleaved(self) -> bytes:
        """Content on several channels at once."""
        rng = self._rng
        streams = [deque(self._content(channel)) for channel in {self._at() for _ in range(3)}]
        out = []
        while streams:
            stream = rng.choice(streams)
            out.append(stream.popleft())
            if not stream:
                streams.remove(stream)
        return b"".join(out)

    def _consume(self) -> bytes:
        tag = self._pick(("", "", "", "t1", "t2", "t3", "n1", "n2"))
        return self._method(
            self._at(), "basic.consume", queue=self._pick(QUEUES), consumer_tag=tag, no_ack=tag.startswith("n"),
            exclusive=self._bit(0.02), no_wait=self._bit(0.1), no_local=self._bit(0.1),
            arguments=self._arguments({"x-priority": (1, -5), "x-stream-offset": ("first", 3)})
            if self._bit(_WRONG) else {},
        )  # fmt: skip

    def _get(self) -> bytes:
        channel, needs_none = self._at(), self._bit()
        self._gets.setdefault(channel, deque()).append(needs_none)
        return self._method(channel, "basic.get", queue=self._pick(QUEUES), no_ack=needs_none)

    def _settle(self) -> bytes:
        rng = self._rng
        name = rng.choice(("basic.ack", "basic.ack", "basic.nack", "basic.reject"))
        multiple = name != "basic.reject" and self._bit(0.2)
        held = [channel for channel, tags in self._unsettled.items() if tags]
        if held and not self._is_wrong():
            channel = rng.choice(held)
            tags = self._unsettled[channel]
            tag = rng.choice(tags)
            self._unsettled[channel] = [each for each in tags if (each > tag if multiple else each != tag)]
        elif self._is_wrong():
            channel, tag = self._at(), rng.choice((0, 1, 2, 2**63, 2**64 - 1))
        else:
            return self._get()
        values: dict[str, Any] = {"delivery_tag": tag}
        if name != "basic.reject":
            values["multiple"] = multiple
        if name != "basic.ack":
            values["requeue"] = self._bit(0.5)
        return self._method(channel, name, **values)

    def _declare_queue(self) -> bytes:
        name = self._pick(QUEUES)
        if name in _DECLARED and not self._bit(0.1):
            return self._method(self._at(), "queue.declare", queue=name, **_DECLARED[name])
        return self._method(
            self._at(), "queue.declare", queue=name, passive=self._bit(0.1), durable=self._bit(0.5),
            exclusive=name.startswith("x") or self._bit(0.05), auto_delete=self._bit(0.1), no_wait=self._bit(0.1),
            arguments=self._arguments(_QUEUE_ARGUMENTS),
        )  # fmt: skip

    def _declare_known_exchange(self, name: str) -> bytes:
        return self._method(self._at(), "exchange.declare", exchange=name, type_=_KINDS_OF[name], durable=name != "e2")

    def _declare_exchange(self) -> bytes:
        if not self._bit(0.15):
            return self._declare_known_exchange(self._pick(list(_KINDS_OF)))
        known = {"alternate-exchange": ("e1", "e2", "none", 5)}
        return self._method(
            self._at(), "exchange.declare", exchange=self._pick(EXCHANGES), type_=self._pick(KINDS),
            passive=self._bit(0.1), durable=self._bit(0.5), auto_delete=self._bit(0.2), internal=self._bit(0.05),
            no_wait=self._bit(0.1), arguments=self._arguments(known),
        )  # fmt: skip

    def _bind(self) -> bytes:
        matches = {"x-match": ("all", "any", "any-with-x", "none"), "a": (1, "b")}
        name = self._pick(
            ("queue.bind", "queue.bind", "queue.bind", "exchange.bind", "queue.unbind", "exchange.unbind")
        )
        source = self._pick(EXCHANGES)
        values: dict[str, Any] = {"routing_key": self._pick(KEYS), "arguments": self._arguments(matches)}
        if name.startswith("queue"):
            values |= {"queue": self._pick(QUEUES), "exchange": source}
        else:
            values |= {"destination": self._pick(EXCHANGES), "source": source}
        if name != "queue.unbind":
            values["no_wait"] = self._bit(0.1)
        return self._method(self._at(), name, **values)

    def _delete(self) -> bytes:
        name = self._pick(("queue.delete", "queue.purge", "queue.purge", "exchange.delete"))
        values: dict[str, Any] = {"no_wait": self._bit(0.1)}
        if name == "exchange.delete":
            values |= {"exchange": self._pick(EXCHANGES), "if_unused": self._bit()}
        else:
            values["queue"] = self._pick(QUEUES)
            if name == "queue.delete":
                values |= {"if_unused": self._bit(), "if_empty": self._bit()}
        return self._method(self._at(), name, **values)

    def _mode(self) -> bytes:
        channel = self._at()
        is_tx = (channel in _TX_CHANNELS) != self._is_wrong()
        return self._method(channel, "tx.select" if is_tx else "confirm.select")

    def _end_transaction(self) -> bytes:
        channels = [channel for channel in self._channels if channel in _TX_CHANNELS]
        if not channels and not self._is_wrong():
            return self._publish()
        channel = self._pick(channels or [1])
        return self._method(channel, self._pick(("tx.commit", "tx.commit", "tx.rollback")))

    def _qos(self) -> bytes:
        return self._method(
            self._at(), "basic.qos", prefetch_count=self._pick((0, 1, 2, 10, 65_535)), global_=self._bit(),
            prefetch_size=int(self._is_wrong()),
        )  # fmt: skip

    def _recover(self) -> bytes:
        return self._method(
            self._at(), self._pick(("basic.recover", "basic.recover-async")), requeue=not self._is_wrong()
        )

    def _cancel(self) -> bytes:
        tag = self._pick(("t1", "t2", "t3", "n1", "none"))
        return self._method(self._at(), "basic.cancel", consumer_tag=tag, no_wait=self._bit())

    def _flow(self) -> bytes:
        return self._method(self._at(), "channel.flow", active=self._bit(0.6))

    def _channel(self) -> bytes:
        closed = [channel for channel in range(1, 7) if channel not in self._channels]
        if self._is_wrong():
            return self._method(self._pick((1, 6, 7, 2_047)), "channel.open")
        if closed and (self._bit(0.6) or not self._channels):
            return self._open(self._pick(closed))
        channel = self._pick(self._channels)
        self._channels.remove(channel)
        return self._method(channel, "channel.close", reply_code=200)

    def _other(self) -> bytes:
        """Any method at all, with empty arguments: those of servers, too."""
        if not self._bit(0.1):
            return self._publish()
        return self._method(self._at(), self._pick(list(METHODS)))

    def _connection(self) -> bytes:
        rng = self._rng
        choice = rng.random()
        if choice < 0.05:
            return self._method(0, "connection.close", reply_code=200)
        if choice < 0.9:
            return self._method(0, "connection.update-secret", new_secret=b"x")
        if choice < 0.95:
            return encode_frame(rng.choice((1, 2, 3, 4, 8, 200)), rng.choice((0, 1)), rng.randbytes(rng.randint(0, 30)))
        return self._method(0, self._pick(("connection.open-ok", "connection.tune-ok", "connection.blocked")))
