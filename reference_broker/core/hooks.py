"""Asks somebody else about each publish and subscription, as FluxMQ's blocking hooks do. Sans-IO: a question is a POST
of an outbox, which ``server.webhooks`` makes and guards. Its client waits for the answer, and nobody else does: what
the client sends behind it is handled afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from assay.reference_broker.config import HookFailure, HookKind, HooksConfig
from assay.reference_broker.core.access import overlap
from assay.reference_broker.core.callouts import Asker
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.routing.carried import is_mqtt_text
from assay.reference_broker.routing.topics import TopicError, validate_topic
from assay.reference_broker.trace.described import described

MAX_HOOK_ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Of an answer, which may have another payload; a longer one is none."""
MAX_ASKED_BYTES: Final = 64 * 1024 * 1024
"""Of questions that wait for their answers; over that nobody is asked."""
MAX_REASON: Final = 200
"""Characters of a reason that are told to the client."""


class Asking(Protocol):
    """The client that is asked about."""

    @property
    def client_id(self) -> str: ...

    @property
    def username(self) -> str | None: ...


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body, with FluxMQ's names."""

    hook: HookKind
    client_id: str
    external_id: str = ""
    """What the answer to a callout called the user."""
    username: str | None
    protocol: str
    topic: str
    """Or the filter of a subscription."""
    payload: bytes = b""
    """In base64."""
    qos: int = 0
    retain: bool = False
    properties: dict[str, str] = {}
    """User properties; of several with one name the last."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What may be answered. A field that is not there, or empty, changes nothing, unless its ``_set`` is true."""

    result: Literal["ok", "deny"]
    reason: str = ""
    topic: str = ""
    payload: bytes = b""
    payload_set: bool = False
    qos: Literal[0, 1, 2] | None = None
    qos_set: bool = False
    retain: bool | None = None
    retain_set: bool = False
    properties: dict[str, str] | None = None
    """In place of all there are."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer makes of a message or a subscription; None = it stays as it is."""

    topic: str | None = None
    payload: bytes | None = None
    qos: Literal[0, 1, 2] | None = None
    retain: bool | None = None
    properties: tuple[tuple[str, str], ...] | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided."""

    error: QueueError | None = None
    """It is refused (NOT_ALLOWED)."""
    change: Change = Change()


UNCHANGED: Final = Verdict()
OnVerdict = Callable[[Verdict], None]


def read_answer(body: bytes, may_change: frozenset[str]) -> Verdict | None:
    """None where it is no answer, or changes what cannot be changed there (``may_change``: fields of Change)."""
    try:
        answer = msgspec.json.decode(body, type=described(Answer))
    except (ValueError, RecursionError):
        return None
    if answer.result == "deny":
        reason = answer.reason[:MAX_REASON] or "somebody who was asked does not allow it"
        return Verdict(error=QueueError(QueueErrorCode.NOT_ALLOWED, reason))
    change = Change(
        topic=answer.topic or None,
        payload=answer.payload if answer.payload_set or answer.payload else None,
        qos=(answer.qos or 0) if answer.qos_set else answer.qos,
        retain=bool(answer.retain) if answer.retain_set else answer.retain,
        properties=None if answer.properties is None else tuple(answer.properties.items()),
    )
    if any(getattr(change, field) is not None and field not in may_change for field in Change.__struct_fields__):
        return None
    if not all(is_mqtt_text(text) for pair in change.properties or () for text in pair):
        return None
    if change.topic is not None:
        try:
            validate_topic(change.topic)
        except TopicError:
            return None
    return Verdict(change=change)


class Hooks:
    """Who decides."""

    def __init__(self, config: HooksConfig, id_of: Callable[[str], str], now: Callable[[], float]) -> None:
        """``id_of`` tells what an answer to a callout called a user."""
        self._kinds = frozenset(config.kinds or HookKind)
        self._topics = tuple([tuple(topic.split("/")) for topic in config.topics])
        self._allows = config.fail is HookFailure.ALLOW
        self._id_of = id_of
        self._asker = Asker("hook", config, now, MAX_HOOK_ANSWER_BYTES)
        self.outbox = self._asker.outbox
        self.undecided = 0
        """Questions without an answer, for which ``hooks.fail`` held."""
        self._asked_bytes = 0

    def asks(self, kind: HookKind, topic: str) -> bool:
        """Whether somebody is to be asked about a topic, or about a filter that has one of those in it."""
        if kind not in self._kinds:
            return False
        return not self._topics or any(overlap(each, tuple(topic.split("/"))) for each in self._topics)

    def ask(
        self,
        kind: HookKind,
        client: Asking,
        protocol: str,
        topic: str,
        on_verdict: OnVerdict,
        *,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: tuple[tuple[str, str], ...] = (),
        may_change: frozenset[str] = frozenset(),
    ) -> Verdict | None:
        """What is decided at once; None: ``on_verdict`` is told later, once."""
        if not self.asks(kind, topic):
            return UNCHANGED
        if self._asker.is_closed or self._asked_bytes + len(payload) > MAX_ASKED_BYTES:
            return self.failed()
        question = Question(
            hook=kind,
            client_id=client.client_id,
            external_id=self._id_of(client.username) if client.username is not None else "",
            username=client.username,
            protocol=protocol,
            topic=topic,
            payload=payload,
            qos=qos,
            retain=retain,
            properties=dict(properties),
        )
        body = msgspec.json.encode(question)
        self._asked_bytes += len(body)

        def answered(answer: bytes | None) -> None:
            self._asked_bytes -= len(body)
            verdict = None if answer is None else read_answer(answer, may_change)
            on_verdict(self.failed() if verdict is None else verdict)

        self._asker.ask(body, answered)
        return None

    def failed(self) -> Verdict:
        """What holds where nobody can be asked: as ``fail`` of the hooks says."""
        self.undecided += 1
        if self._allows:
            return UNCHANGED
        return Verdict(error=QueueError(QueueErrorCode.NOT_ALLOWED, "who decides about it cannot be asked now"))
