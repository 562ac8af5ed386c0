"""The JSON Schema of a report's lines, from the structs: ``python -m assay.conformance.schema`` writes it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from assay.reference_broker.trace.conformance import CONFORMANCE_SCHEMA, Line, WireLine

REPORT_SCHEMA_FILE = Path(__file__).parent / "schemas" / "report.schema.json"
TRANSCRIPT_SCHEMA_FILE = Path(__file__).parent / "schemas" / "transcript.schema.json"


def _schema(kind: object, title: str, description: str) -> dict[str, object]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        **msgspec.json.schema(kind),
    }


def report_schema() -> dict[str, object]:
    """Schema of one line of ``report.jsonl``."""
    text = "One line of a conformance report: a header, a clause, a case's result, or the footer, told apart by `type`."
    return _schema(Line, CONFORMANCE_SCHEMA, text)


def transcript_schema() -> dict[str, object]:
    """Schema of one line of ``transcripts/<case>.jsonl``."""
    return _schema(WireLine, f"{CONFORMANCE_SCHEMA} transcript", "One line of the wire transcript of a case.")


def schema_text(schema: dict[str, object]) -> str:
    """The text of the published file."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    REPORT_SCHEMA_FILE.parent.mkdir(exist_ok=True)
    REPORT_SCHEMA_FILE.write_text(schema_text(report_schema()), encoding="utf-8")
    TRANSCRIPT_SCHEMA_FILE.write_text(schema_text(transcript_schema()), encoding="utf-8")
