"""The table of bounds in ``docs/configuration.md`` says what is so."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, ListenerConfig, QueueConfig, TenantConfig, WebSocketConfig
from assay.reference_broker.mqtt.sessions.sys_topics import figure_names
from assay.reference_broker.queues import GroupStats, QueueStats

ROOT = Path(__file__).resolve().parents[1]
_LISTS: dict[str, Any] = {
    "listeners[]": ListenerConfig(websocket=WebSocketConfig()),
    "queues.configured[]": QueueConfig(name="q"),
    "queues.tenants[]": TenantConfig(name="t"),
}
"""An entry of each list of the configuration."""


class Row(NamedTuple):
    what: str
    key: str
    default: str
    at_the_bound: str
    figure: str
    test: str


def _rows() -> list[Row]:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = page.partition("\n## Bounds\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


ROWS = _rows()


def _default(key: str) -> object:
    if key.rpartition(".")[2].isupper():
        module, _, name = key.rpartition(".")
        return getattr(importlib.import_module(f"assay.reference_broker.{module}"), name)
    place: Any = BrokerConfig()
    for start, entry in _LISTS.items():
        if key.startswith(start):
            place, key = entry, key.removeprefix(start + ".")
    for name in key.split("."):
        place = getattr(place, name)
    return place


def test_the_table_is_there() -> None:
    assert len(ROWS) > 20
    assert len({row.what for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_names_what_there_is(row: Row) -> None:
    for key in re.findall(r"`([^`]+)`", row.key):
        assert str(_default(key)).removesuffix(".0") == row.default
    assert row.at_the_bound
    for figure in re.findall(r"`([^`]+)`", row.figure):
        if row.figure.startswith("stats: "):
            assert figure in QueueStats.__struct_fields__ or figure in GroupStats.__struct_fields__
        else:
            assert figure in figure_names()
    tests = re.findall(r"`([^`]+)::(test_\w+)`", row.test)
    assert tests
    for path, name in tests:
        module = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == name for node in module.body), name


def _limits(struct: type, path: str = "") -> list[str]:
    """Paths of what the configuration calls a maximum."""
    found = []
    for field in msgspec.structs.fields(struct):
        kinds = (field.type, *getattr(field.type, "__args__", ()))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        is_list = any(getattr(kind, "__origin__", None) is tuple for kind in kinds)
        here = f"{path}{field.name}{'[]' * is_list}"
        if inner:
            found += [name for kind in inner for name in _limits(kind, f"{here}.")]
        elif field.name.startswith("max_"):
            found.append(here)
    return found


def test_a_maximum_of_memory_has_a_row() -> None:
    """Beside times, tries and rates, which bound no memory."""
    named = {key for row in ROWS for key in re.findall(r"`([^`]+)`", row.key)}
    elsewhere = {
        "mqtt.max_session_expiry_s",
        "mqtt.max_keep_alive_s",
        "http.max_poll_s",
        "queues.transactions.max_timeout_s",
        "queues.configured[].retry.max_retries",
        "queues.configured[].retry.max_backoff_s",
    }
    quotas = {name for name in _limits(BrokerConfig) if name.startswith("queues.tenants[].quotas.")}
    retention = {name for name in _limits(BrokerConfig) if ".retention." in name}  # of the disk
    assert set(_limits(BrokerConfig)) - named - elsewhere - quotas - retention == set()
