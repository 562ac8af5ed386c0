"""What the registry refuses, with the numbers that Confluent's clients know."""

from __future__ import annotations

from enum import IntEnum


class SchemaErrorCode(IntEnum):
    """``error_code`` of an answer; the first three digits are the status of HTTP."""

    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    """Deleting it again must be said to be for good."""
    SUBJECT_NOT_SOFT_DELETED = 40405
    """Only what was deleted may be deleted for good."""
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    SUBJECT_COMPATIBILITY_NOT_FOUND = 40408
    SUBJECT_MODE_NOT_FOUND = 40409
    INCOMPATIBLE = 409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_COMPATIBILITY = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    INVALID_SUBJECT = 42208
    LIMIT = 40901
    """A limit of the configuration is reached."""
    STORE_FAILED = 50301

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return self.value if self.value < 1_000 else self.value // 100


class SchemaError(Exception):
    """A request that the registry refuses. ``text`` says why, for people."""

    def __init__(self, code: SchemaErrorCode, text: str, details: tuple[str, ...] = ()) -> None:
        """``details``: one for each thing that is wrong."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.details = details
