"""The document is what is served, it is kept as it is, and every code has its row."""

from __future__ import annotations

from pathlib import Path

import msgspec

from assay.reference_broker.api.problems import PROBLEMS, Code
from assay.reference_broker.http.app import create_app
from assay.reference_broker.queues import QueueErrorCode
from tests.http.conftest import Served

KEPT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def test_the_document_is_kept_as_it_is(served: Served) -> None:
    made = create_app(None).state.document
    assert msgspec.json.decode(KEPT.read_bytes()) == made, "python -m assay.reference_broker.http > docs/openapi.json"
    assert served.client().get("/api/v1/openapi.json").json() == made


def test_every_code_has_a_row() -> None:
    assert PROBLEMS.keys() == {*Code, *QueueErrorCode}
