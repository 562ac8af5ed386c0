"""Toxics as the API knows them: type, stream, toxicity and typed attributes. What they do is in ``stages``."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any, Final

import msgspec

from assay.faults.toxiproxy.errors import ApiError, bad_request, invalid_stream, invalid_toxic_type
from assay.reference_broker.trace.described import described

_LOG: Final = logging.getLogger("assay.toxiproxy")


class Stream(StrEnum):
    """Direction relative to the proxy."""

    UPSTREAM = "upstream"
    """From the client to the server."""
    DOWNSTREAM = "downstream"
    """From the server to the client."""


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """Base: unknown attributes are dropped, as toxiproxy does."""


class LatencyAttributes(Attributes, frozen=True, kw_only=True):
    """Milliseconds; the jitter is uniform in both directions."""

    latency: int = 0
    jitter: int = 0


class BandwidthAttributes(Attributes, frozen=True, kw_only=True):
    """Kilobytes (1000 bytes) per second; 0 and below = no limit."""

    rate: int = 0


class SlowCloseAttributes(Attributes, frozen=True, kw_only=True):
    """Milliseconds."""

    delay: int = 0


class TimeoutAttributes(Attributes, frozen=True, kw_only=True):
    """Milliseconds; 0 = never."""

    timeout: int = 0


class ResetPeerAttributes(Attributes, frozen=True, kw_only=True):
    """Milliseconds."""

    timeout: int = 0


class SlicerAttributes(Attributes, frozen=True, kw_only=True):
    """Bytes, bytes, microseconds."""

    average_size: int = 0
    size_variation: int = 0
    delay: int = 0


class LimitDataAttributes(Attributes, frozen=True, kw_only=True):
    """Bytes."""

    bytes: int = 0


class LossAttributes(Attributes, frozen=True, kw_only=True):
    """Ours. Probability that a segment is lost, and the first retransmission timeout in milliseconds."""

    loss_rate: float = 0.1
    rto: int = 200


class BlackholeAttributes(Attributes, frozen=True, kw_only=True):
    """Ours. Nothing to set."""


ATTRIBUTES: Final[dict[str, type[Attributes]]] = {
    "latency": LatencyAttributes,
    "bandwidth": BandwidthAttributes,
    "slow_close": SlowCloseAttributes,
    "timeout": TimeoutAttributes,
    "reset_peer": ResetPeerAttributes,
    "slicer": SlicerAttributes,
    "limit_data": LimitDataAttributes,
    "loss_retx": LossAttributes,
    "blackhole": BlackholeAttributes,
}
"""Toxic type to its attributes. The last two are not toxiproxy's."""


class Toxic(msgspec.Struct, frozen=True, kw_only=True):
    """One toxic of a proxy."""

    name: str
    type: str
    stream: Stream
    toxicity: float
    """Probability that a connection gets the toxic; drawn when the toxic starts on the connection."""
    attributes: Attributes

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the API shows a toxic."""
        return {
            "attributes": msgspec.to_builtins(self.attributes),
            "name": self.name,
            "type": self.type,
            "stream": self.stream.value,
            "toxicity": int(self.toxicity) if self.toxicity.is_integer() else self.toxicity,
        }


class _ToxicBody(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    type: str = ""
    stream: str = Stream.DOWNSTREAM
    toxicity: float = 1.0
    attributes: dict[str, Any] | None = None


class _ToxicUpdate(msgspec.Struct, frozen=True, kw_only=True):
    toxicity: float | None = None
    attributes: dict[str, Any] | None = None


def create_toxic(body: bytes) -> Toxic:
    """The toxic that a POST body describes. Raises :class:`ApiError` with the code and text of toxiproxy."""
    given = _decode(body, _ToxicBody)
    try:
        stream = Stream(given.stream.lower())
    except ValueError as error:
        raise invalid_stream() from error
    kind = ATTRIBUTES.get(given.type)
    if kind is None:
        raise invalid_toxic_type()
    toxic = Toxic(
        name=given.name or f"{given.type}_{stream.value}",
        type=given.type,
        stream=stream,
        toxicity=given.toxicity,
        attributes=_attributes(kind, given.attributes or {}),
    )
    _warn(toxic, given.attributes or {})
    return toxic


def update_toxic(toxic: Toxic, body: bytes) -> Toxic:
    """The toxic after a PATCH: attributes are merged, name, type and stream stay. Raises :class:`ApiError`."""
    given = _decode(body, _ToxicUpdate)
    changes = given.attributes or {}
    merged = {**msgspec.to_builtins(toxic.attributes), **changes}
    changed = msgspec.structs.replace(
        toxic,
        toxicity=toxic.toxicity if given.toxicity is None else given.toxicity,
        attributes=_attributes(type(toxic.attributes), merged),
    )
    _warn(changed, changes)
    return changed


def _decode(body: bytes, kind: type[_ToxicBody] | type[_ToxicUpdate]) -> Any:
    try:
        return msgspec.json.decode(body, type=described(kind | None)) or kind()
    except msgspec.DecodeError as error:
        raise bad_request(error) from error


def _attributes(kind: type[Attributes], given: dict[str, Any]) -> Attributes:
    try:
        return msgspec.convert(given, described(kind))
    except msgspec.ValidationError as error:
        raise bad_request(error) from error


def _warn(toxic: Toxic, given: dict[str, Any]) -> None:
    """What toxiproxy takes in silence is taken here too, but not in silence."""
    odd = [f"unknown attribute {name!r}" for name in given if name not in type(toxic.attributes).__struct_fields__]
    values = msgspec.to_builtins(toxic.attributes)
    odd += [f"{name} is below 0" for name, value in values.items() if value < 0]
    if not 0.0 <= toxic.toxicity <= 1.0:
        odd.append(f"toxicity {toxic.toxicity:g} is no probability")
    if odd:
        _LOG.warning("toxic %s: %s", toxic.name, "; ".join(odd))


__all__ = ["ATTRIBUTES", "ApiError", "Attributes", "Stream", "Toxic", "create_toxic", "update_toxic"]
