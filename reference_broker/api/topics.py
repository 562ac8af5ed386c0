"""GoQueue's names: topics, which are queues. A topic ``orders.dlq`` is the dead letters of ``orders``."""

from __future__ import annotations

from typing import Final, Protocol

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.service import Service
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, is_dead_letter

_LETTERS: Final = ".dlq"


class Asking(Protocol):
    """One request over any face: who asks, and whom."""

    @property
    def service(self) -> Service: ...

    @property
    def caller(self) -> Caller: ...


def topic_out(name: str) -> str:
    """A queue's name, as the caller knows it, as a topic."""
    return name[len(DEAD_LETTER_PREFIX) :] + _LETTERS if is_dead_letter(name) else name


def queue_in(asking: Asking, topic: str) -> str:
    """The opposite: of what ends in .dlq the dead letters, unless there is a queue of that very name."""
    if topic.endswith(_LETTERS) and not asking.service.engine.exists(asking.caller.named_in(topic)):
        return DEAD_LETTER_PREFIX + topic[: -len(_LETTERS)]
    return topic
