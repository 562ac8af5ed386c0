"""Every number of the configuration: one that makes no sense is refused, with its path."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, ConfigError, check_config, parse_config

_REQUIRED: dict[str, dict[str, Any]] = {
    "configured": {"name": "q"},
    "tenants": {"name": "t", "clients": ["x"]},
    "tokens": {"name": "t", "user": "u", "hash": "x"},
    "tls": {"certificate": "a", "key": "b"},
    "websocket": {},
    "authenticate": {"url": "http://127.0.0.1/"},
    "hooks": {"url": "http://127.0.0.1/"},
    "endpoints": {"url": "http://127.0.0.1/"},
}


def _numbers(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(struct):
        here = (*path, field.encode_name)
        for kind in (field.type, *typing.get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from _numbers(kind, here)
            elif kind in (int, float):
                yield here
                break


NUMBERS = sorted(set(_numbers(BrokerConfig)))


def _configuration(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The least data in which the number at a path has a value."""
    data: object = value
    for index in reversed(range(len(path))):
        name = path[index]
        if isinstance(data, dict):
            data = {**_REQUIRED.get(name, {}), **data}
            if name == "listeners" and "websocket" in path:
                data["transport"] = "websocket"
            if name in ("listeners", "configured", "tenants", "tokens", "endpoints"):
                data = [data]
        data = {name: data}
    assert isinstance(data, dict)
    if path[0] == "testing":
        data["testing"]["movable_clock"] = True
    return data


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
@pytest.mark.parametrize("value", [-5, 10**18, float("nan"), float("inf"), -0.001])
def test_a_number_out_of_every_range_is_refused(path: tuple[str, ...], value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(_configuration(path, value))
    assert path[-1] in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "mqtt.connect_timeout_s",
        "mqtt.max_unread_bytes",
        "mqtt.max_topic_levels",
        "listeners.max_connections",
        "sessions.sync_interval_s",
        "sessions.segment_bytes",
        "queues.max_queues",
        "queues.configured.max_in_flight",
        "queues.configured.delivery_timeout_s",
        "queues.transactions.max_open",
    ],
)
def test_zero_is_refused_where_nothing_would_work_any_more(path: str) -> None:
    with pytest.raises(ConfigError, match=path.rsplit(".", 1)[-1]):
        parse_config(_configuration(tuple(path.split(".")), 0))


@pytest.mark.parametrize(
    "path",
    [
        "queues.configured.group.max_in_flight",
        "queues.configured.retention.max_messages",
        "queues.tenants.quotas.max_connections",
        "queues.tenants.quotas.max_queues",
        "listeners.port",
        "sys.interval_s",
    ],
)
def test_zero_stays_what_it_means(path: str) -> None:
    parse_config(_configuration(tuple(path.split(".")), 0))


def test_the_defaults_pass_however_they_are_made() -> None:
    check_config(BrokerConfig())


def test_run_time_settings_of_a_queue_are_held_to_the_same() -> None:
    with pytest.raises(ConfigError, match=r"queues\.q\.retry\.multiplier"):
        parse_config({"queues": {"defaults": {"retry": {"multiplier": -1}}, "configured": [{"name": "q"}]}})
    with pytest.raises(ConfigError, match="max_in_flight"):
        parse_config({"queues": {"templates": {"a-*": {"max_in_flight": 0}}}})
