"""Whether a message fits the schema of its queue."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from assay.reference_broker.config_schemas import SchemaCheckConfig
from assay.reference_broker.routing.message import Message
from assay.reference_broker.schemas.errors import SchemaError
from assay.reference_broker.schemas.log import SchemaLog

SCHEMA_ID: Final = "schema-id"
"""The user property, or header, that names a schema by its id."""
MAGIC: Final = b"\0"
"""What a payload begins with that names its schema itself: 4 bytes of the id follow, big-endian, and the document."""
PREFIX_BYTES: Final = 5
"""Of such a payload, what stands before the document."""
MAX_TEXT: Final = 400


class SchemaChecks:
    """Holds messages against the registry. One for a broker."""

    def __init__(self, log: SchemaLog) -> None:
        self._log = log
        self._registry = log.registry
        self.checked = 0
        self.misfits = 0

    def problem(self, config: SchemaCheckConfig, message: Message) -> str | None:
        """Why a message does not fit; None = it does. Never raises.

        Its schema is named by the payload (:data:`MAGIC`), by the property :data:`SCHEMA_ID`, or it is the latest one
        of the subject. What is named must be a version of the subject, be it one that was deleted.
        """
        self.checked += 1
        try:
            found = self._problem(config, message)
        except SchemaError as error:
            found = error.text
        if found is None:
            return None
        self.misfits += 1
        return found[:MAX_TEXT]

    def _problem(self, config: SchemaCheckConfig, message: Message) -> str | None:
        self._log.check_usable()
        payload = message.payload
        number: int | None = None
        if payload.startswith(MAGIC):
            if len(payload) < PREFIX_BYTES:
                return "the payload begins with a zero byte and has no schema id"
            number = int.from_bytes(payload[1:PREFIX_BYTES], "big")
            payload = payload[PREFIX_BYTES:]
        elif (named := named_id(message)) is not None:
            if not named.isdecimal() or len(named) > 10:
                return f"{SCHEMA_ID} {named[:40]!r} is no number"
            number = int(named)
        if number is None:
            if config.require_id:
                return f"it does not name its schema, by {SCHEMA_ID} or in the payload"
            number = self._registry.latest_id(config.subject)
            if number is None:
                return f"the subject {config.subject[:80]!r} has no schema"
        elif not self._registry.belongs(number, config.subject):
            return f"the subject {config.subject[:80]!r} has no schema of the id {number}"
        try:
            document = msgspec.json.decode(payload)
        except (ValueError, RecursionError) as error:
            return f"the payload is no JSON: {error}"
        return self._misfit(number, document)

    def _misfit(self, number: int, document: Any) -> str | None:
        validator = self._registry.document(number).validator()
        if validator.is_valid(document):
            return None
        first = next(iter(validator.iter_errors(document)))
        place = "".join(f"/{step}" for step in first.instance_path)
        return f"schema {number}: at {place[:80] or '/'}: {str(first.message)[:240]}"


def named_id(message: Message) -> str | None:
    """The id that a message names, as MQTT or AMQP have it."""
    named = message.user_property(SCHEMA_ID)
    if named is None and message.properties is not None:
        for name, value in message.properties.headers:
            if name == SCHEMA_ID:
                return str(getattr(value, "value", value))
    return named
