"""The OpenAPI document: paths and parameters as FastAPI sees them, bodies and answers as msgspec does.

``python -m assay.reference_broker.http`` prints it: ``docs/openapi.json`` is kept as it is, and a test compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from assay.reference_broker.api.problems import PROBLEMS, AnyCode, Code, Problem
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import COMMON_ERRORS, JSON, Area, Declared
from assay.reference_broker.http.guard import PROBLEM_JSON

RAW: Final = "application/octet-stream"
_REF: Final = "#/components/schemas/{name}"
_ABOUT: Final = """\
The HTTP face of the broker. Errors are problems (RFC 9457) with a stable `code`. What GoQueue's clients use stands at
the root and under `/v1` as well, and `error` and `status` in a problem are theirs. A slash within a name is sent as
`%2F`. A POST has the content type `application/json`, also without a body. Every 2xx says that what was asked for is as
durable as its queue promises.
"""
_SCOPES: Final = {
    Scope.READ: "look, consume, settle",
    Scope.WRITE: "publish",
    Scope.ADMIN: "create, change and delete",
}


def make_document(app: FastAPI, areas: Sequence[Area]) -> dict[str, Any]:
    """The whole document, as JSON."""
    declared = {name: each for area in areas for name, each in area.declared.items()}
    kinds = [each.answer for each in declared.values()] + [each.body for each in declared.values()]
    wanted = [*(kind for kind in kinds if kind is not None), Problem]
    schemas, components = msgspec.json.schema_components(wanted, ref_template=_REF)
    by_kind = {id(kind): schema for kind, schema in zip(wanted, schemas, strict=True)}
    document = get_openapi(
        title=app.title,
        version="1",
        description=_ABOUT,
        routes=app.routes,
        tags=[{"name": area.tag, "description": area.about} for area in areas],
    )
    problems: dict[str, Any] = {}
    for path in document["paths"].values():
        for operation in path.values():
            _complete(operation, declared[operation["operationId"]], by_kind, problems)
    components["Problem"]["properties"]["code"]["enum"] = sorted(code.value for code in PROBLEMS)
    document["components"] = {
        "schemas": dict(sorted(components.items())),
        "responses": dict(sorted(problems.items())),
        "securitySchemes": {
            "basic": {"type": "http", "scheme": "basic"},
            "bearer": {"type": "http", "scheme": "bearer", "description": "A token made by `assay token`."},
        },
    }
    # As it is written, so that it can be compared.
    return msgspec.json.decode(msgspec.json.encode(document))  # type: ignore[no-any-return]


def _complete(operation: dict[str, Any], declared: Declared, schemas: dict[int, Any], problems: dict[str, Any]) -> None:
    """``problems``: responses that operations share, by name."""
    operation.pop("requestBody", None)
    for parameter in operation.get("parameters", ()):
        parameter["schema"].pop("title", None)
    if declared.body is not None:
        kind = RAW if declared.body is bytes else JSON
        operation["requestBody"] = {"content": {kind: {"schema": schemas[id(declared.body)]}}, "required": True}
    answer: dict[str, Any] = {"description": "Done"}
    if declared.answer is not None:
        answer["content"] = {declared.media_type: {"schema": schemas[id(declared.answer)]}}
    operation["responses"] = {str(status): answer for status in (declared.status, *declared.also)}
    if declared.scope is None:
        errors: set[AnyCode] = {Code.INTERNAL, Code.BUSY, *declared.errors}
    else:
        errors = {*COMMON_ERRORS, *declared.errors}
        about = f"Needs the scope `{declared.scope.value}`: {_SCOPES[declared.scope]}."
        operation["description"] = f"{operation.get('description', '')}\n\n{about}".strip()
        operation["security"] = [{"basic": []}, {"bearer": []}, {}]
    by_status = sorted(errors, key=lambda code: (PROBLEMS[code].status, code.value))
    for status, codes in groupby(by_status, key=lambda code: PROBLEMS[code].status):
        texts = [code.value for code in codes]
        name = f"{status}.{'.'.join(texts)}"
        problems[name] = {
            "description": ", ".join(f"`{text}`" for text in texts),
            "content": {PROBLEM_JSON: {"schema": schemas[id(Problem)]}},
        }
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
