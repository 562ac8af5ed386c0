"""Configuration: strict, with the path of the offending key."""

from __future__ import annotations

import re
import typing
from enum import Enum
from pathlib import Path

import msgspec
import pytest
import yaml

import assay.reference_broker
from assay.reference_broker.config import (
    LARGEST_PACKET_BYTES,
    AdminTopics,
    BrokerConfig,
    ConfigError,
    Durability,
    ListenerConfig,
    Profile,
    QueueConfig,
    QueuesConfig,
    load_config,
    parse_config,
    queue_defaults,
)
from assay.reference_broker.config_mqtt import Section


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"mqtt": {"recieve_maximum": 3}}, "$.mqtt"),
        ({"listeners": [{"port": "many"}]}, "$.listeners[0].port"),
        ({"queues": {"configured": [{"name": "a", "retry": {"max_retrys": 1}}]}}, "$.queues.configured[0].retry"),
        ({"queues": {"defaults": {"partition": 3}}}, "queues.defaults"),
        ({"queues": {"configured": [{"name": "a", "partitions": 0}]}}, "queues.a.partitions"),
        ({"mqtt": {"maximum_qos": 3}}, "mqtt.maximum_qos"),
        ({"mqtt": {"receive_maximum": 0}}, "mqtt.receive_maximum"),
        ({"queues": {"configured": [{"name": "a", "durability": "fsync"}]}}, "queues.configured[0].durability"),
        ({"nodes": 1}, "nodes"),
        ([1], "top level"),
    ],
)
def test_errors_name_the_key(data: object, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    assert path in str(caught.value)


def test_every_section_refuses_unknown_keys() -> None:
    sections = [Section]
    for section in sections:
        sections += section.__subclasses__()
    assert {BrokerConfig, ListenerConfig, QueueConfig} < set(sections)
    lax = [section.__name__ for section in sections if not section.__struct_config__.forbid_unknown_fields]
    assert lax == []


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("", encoding="utf-8")
    assert load_config(path) == BrokerConfig()


def test_a_missing_file_and_bad_yaml_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "bad.yaml")


def test_yaml_tags_that_would_build_objects_are_refused(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text("node: !!python/object/apply:os.system ['true']", encoding="utf-8")
    with pytest.raises(ConfigError):
        load_config(tmp_path / "evil.yaml")


def test_a_configured_queue_names_only_what_differs_from_profile_and_defaults() -> None:
    config = parse_config(
        {
            "data_dir": "x",
            "queues": {
                "profile": "goqueue",
                "defaults": {"durability": "interval", "retry": {"max_retries": 7}},
                "configured": [{"name": "orders", "retry": {"multiplier": 3.0}}],
            },
        }
    )
    (orders,) = config.queues.configured
    assert orders.partitions == 3
    assert orders.durability is Durability.INTERVAL
    assert orders.retry.max_retries == 7
    assert orders.retry.multiplier == 3.0
    assert orders.retry.initial_backoff_s == 1.0
    assert queue_defaults(config.queues, "orders") is orders
    assert queue_defaults(config.queues, "other").retry.multiplier == 2.0


def test_profiles_have_the_seeds_figures() -> None:
    fluxmq = queue_defaults(QueuesConfig(profile=Profile.FLUXMQ), "q")
    assert (fluxmq.partitions, fluxmq.retry.max_retries, fluxmq.retry.initial_backoff_s) == (10, 10, 5.0)
    assert (fluxmq.retry.max_backoff_s, fluxmq.retry.total_timeout_s, fluxmq.delivery_timeout_s) == (
        300.0,
        10_800.0,
        30.0,
    )
    goqueue = queue_defaults(QueuesConfig(profile=Profile.GOQUEUE), "q")
    assert (goqueue.partitions, goqueue.retry.max_retries, goqueue.retry.max_backoff_s) == (3, 3, 60.0)
    inproc = queue_defaults(QueuesConfig(profile=Profile.INPROC), "q")
    assert (inproc.durability, inproc.message_ttl_s, inproc.dead_letters) == (Durability.MEMORY, 0.0, False)
    assert (inproc.retry.max_retries, inproc.retry.initial_backoff_s, inproc.delivery_timeout_s) == (3, 0.0, 30.0)


def test_every_key_is_read_somewhere() -> None:
    """G15: a key that is documented, accepted and read by nobody is a promise that nobody keeps."""
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(assay.reference_broker.__file__).parent.rglob("*.py"))
        if not path.name.startswith("config")
    )
    # These four are the configuration's own business: they make up the settings of each queue.
    read = {"profile", "defaults", "configured", "templates"} | set(
        re.findall(r"\.([a-z_][a-z0-9_]*)\b(?!\s*\()", source)
    )
    structs: list[type[msgspec.Struct]] = [BrokerConfig]
    unread: list[str] = []
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            if field.name not in read:
                unread.append(f"{struct.__name__}.{field.name}")
            for kind in (field.type, *typing.get_args(field.type)):
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in structs:
                    structs.append(kind)
    assert len(structs) > 10
    assert unread == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mqtt: {maximum_qos: 1}\nmqtt: {receive_maximum: 5}\n", "'mqtt' stands twice (line 2"),
        ("mqtt:\n  maximum_qos: 1\n  maximum_qos: 2\n", "'maximum_qos' stands twice (line 3"),
        ("queues: {templates: {a-*: {partitions: 1}, a-*: {partitions: 2}}}\n", "'a-*' stands twice"),
        ("a: " + "[" * 5_000, "not YAML"),
        ("node: 2026-02-31\n", "not YAML"),
    ],
)
def test_what_yaml_would_lose_or_choke_on_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert problem in str(caught.value)


def test_a_mapping_may_still_be_merged_into_several(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(
        "queues:\n  templates:\n    a: &a {partitions: 2}\n    b: {<<: *a, max_depth: 5}\n", encoding="utf-8"
    )
    assert load_config(path).queues.templates["b"] == {"partitions": 2, "max_depth": 5}


def test_a_file_that_is_not_utf8_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_bytes(b"node: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"not UTF-8.*byte 9"):
        load_config(path)


def _choices(struct: type[msgspec.Struct]) -> set[str]:
    found: set[str] = set()
    for field in msgspec.structs.fields(struct):
        for kind in (field.type, *typing.get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                found |= _choices(kind)
            elif isinstance(kind, type) and issubclass(kind, Enum):
                found |= {str(choice.value) for choice in kind}
    return found


def test_every_choice_may_be_written_without_quotes(tmp_path: Path) -> None:
    """``off`` is false in YAML 1.1."""
    choices = _choices(BrokerConfig)
    assert "off" in choices
    assert {choice for choice in choices if yaml.safe_load(choice) != choice} == {"off"}
    path = tmp_path / "broker.yaml"
    path.write_text("queues: {admin_topics: off}\n", encoding="utf-8")
    assert load_config(path).queues.admin_topics is AdminTopics.OFF


def test_a_packet_limit_above_what_the_protocol_can_frame_is_refused() -> None:
    parse_config({"mqtt": {"max_packet_bytes": LARGEST_PACKET_BYTES}})
    with pytest.raises(ConfigError, match=r"mqtt\.max_packet_bytes"):
        parse_config({"mqtt": {"max_packet_bytes": LARGEST_PACKET_BYTES + 1}})
