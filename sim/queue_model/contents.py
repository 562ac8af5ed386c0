"""What messages say, small and large, and that a delivery says what was published; so does a dead letter."""

from __future__ import annotations

from typing import Final

import msgspec

from assay.reference_broker.queues import Delivery
from assay.reference_broker.routing.message import Message
from assay.sim.queue_model.state import ViolationError

_LETTER_PREFIX: Final = "_dlq_"
_KILO: Final = 1_024
_FILLING: Final = bytes(range(256))
DRESSES: Final = ("", "", "", "", "tiny", "1 KB", "100 KB", "repeated", "large properties", "all fields")
"""How messages look; most of them are nothing but their names."""


def dressed(message: Message, dress: str) -> Message:
    """A message that says more than its name, which is its payload or, when that is too small, its correlation data."""
    label, own = message.payload, message.user_properties
    match dress:
        case "tiny":
            return _with(message, payload=label[:1], correlation_data=label)
        case "1 KB" | "100 KB":
            size = _KILO * (1 if dress == "1 KB" else 100)
            return _with(message, payload=(label + b" " + _FILLING * (size // len(_FILLING)))[:size])
        case "repeated":
            # Before, between and behind the options of the queue; what a stranger calls a broker's stays a stranger's.
            mine = (("x", "1"), *own, ("y", ""), ("x", "2"), ("x", "1"), ("_publisher", "z"), ("__x", "_"), ("", "é"))
            return _with(message, user_properties=mine)
        case "large properties":
            many = tuple((f"name {number % 7}", str(number) * 50) for number in range(40))
            return _with(message, user_properties=(*own, *many, ("long", "v" * 10 * _KILO)))
        case "all fields":
            return _with(
                message,
                payload_format=1,
                content_type="text/plain",
                response_topic="answers/é",
                correlation_data=label,
                publisher="somebody",
            )
        case _:
            return message


def _with(message: Message, **fields: object) -> Message:
    return msgspec.structs.replace(message, **fields)


def name_in(message: Message) -> str:
    """The name of a message, however it is dressed."""
    if len(message.payload) == 1:
        return (message.correlation_data or b"").decode()
    return message.payload[:40].partition(b" ")[0].decode()


class Contents:
    """What was published, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Message] = {}

    def published(self, message: Message) -> None:
        self._known[name_in(message)] = message

    def check(self, delivery: Delivery) -> None:
        """Hold a delivery to what was published. Raises :class:`ViolationError`.

        A dead letter says the same, and where it came from behind that.
        """
        found, name = delivery.message, name_in(delivery.message)
        known = self._known.get(name)
        if known is None:
            raise ViolationError(f"{delivery.message_id} delivers {name!r}, which nobody published")
        is_letter = found.user_property(f"{_LETTER_PREFIX}group") is not None
        theirs = found.user_properties
        if is_letter:
            size = next(at for at, (key, _) in enumerate(theirs) if key.startswith(_LETTER_PREFIX))
            theirs, history = theirs[:size], theirs[size:]
            if any(not key.startswith(_LETTER_PREFIX) for key, _ in history) or len(dict(history)) < len(history):
                raise ViolationError(f"{delivery.message_id} mixes the history of {name} with its own: {history}")
        fields = ("payload", "publisher", "payload_format", "content_type", "response_topic", "correlation_data")
        for field in (*fields, *(() if is_letter else ("topic",))):
            said, meant = getattr(found, field), getattr(known, field)
            if said != meant:
                raise ViolationError(f"{delivery.message_id}: {field} of {name} is {said!r:.80}, not {meant!r:.80}")
        meant = known.user_properties
        if theirs != meant:
            raise ViolationError(f"{delivery.message_id}: {name} has {theirs!r:.300}, not {meant!r:.300}")
