"""The configuration of the schema registry, and of what queues hold messages against."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Count, Range

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


class SchemaMode(StrEnum):
    """What becomes of a message that does not fit."""

    REJECT = "reject"
    """Its publisher is told."""
    DEAD_LETTER = "dead_letter"
    """The dead-letter queue has it, with the reason; its publisher's confirm says that it is safe."""
    MARK = "mark"
    """It is enqueued with the user property ``schema-error``."""


class SchemaCheckConfig(Section, frozen=True, kw_only=True):
    """What the messages of a queue must fit."""

    subject: str = ""
    """Of the registry; empty = nothing is checked."""
    mode: SchemaMode = SchemaMode.REJECT
    require_id: bool = False
    """A message that does not name its schema does not fit; else it is held against the latest of the subject."""


class SchemasConfig(Section, frozen=True, kw_only=True):
    """Limits of the registry."""

    compatibility: str = "BACKWARD"
    """Of subjects, until another level is set at run time."""
    max_subjects: Count = 10_000
    max_versions: Count = 1_000
    """Of one subject, deleted ones included."""
    max_schema_bytes: Annotated[int, Range(1, 1 << 20)] = 65_536
    cache_bytes: Count = 64 * 1024 * 1024
    """What compiled schemas may take in memory."""


def schemas_problems(config: SchemasConfig) -> list[str]:
    """What is wrong, each with its key."""
    if config.compatibility not in LEVELS:
        return [f"schemas.compatibility must be one of {', '.join(LEVELS)}"]
    return []
