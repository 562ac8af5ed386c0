"""Prints the OpenAPI document, as ``docs/openapi.json`` keeps it."""

from __future__ import annotations

import msgspec

from assay.reference_broker.http.app import create_app

if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(create_app(None).state.document), indent=1).decode())
