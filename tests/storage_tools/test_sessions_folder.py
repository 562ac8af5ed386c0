"""The log of sessions and retained messages is shown, verified and dumped like a queue."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage_tools.cli import app

NOW = 1_700_000_000.0


def make_data(folder: Path) -> None:
    node = BrokerNode(BrokerConfig(), RealDisk(folder), random.Random(1), NOW)
    connection = node.accept("test", NOW)
    request = p.SubscriptionRequest(topic_filter="t/#", qos=1)
    for packet in (
        p.Connect(version=p.V311, client_id="c", clean_start=False),
        p.Subscribe(packet_id=1, requests=(request,)),
        p.Publish(topic="t/1", payload=b"kept", retain=True),
    ):
        node.receive(connection, encode_packet(packet, p.V311), NOW)
        node.take_dirty(NOW)
    node.close(NOW)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_it_is_listed_verified_and_dumped(tmp_path: Path) -> None:
    make_data(tmp_path)
    code, output = run("inspect", str(tmp_path))
    assert code == 0
    assert "$sessions" in output
    code, output = run("verify", str(tmp_path))
    assert code == 0, output
    assert "SOUND" in output
    code, output = run("dump", str(tmp_path), "--queue", "$sessions")
    assert code == 0
    keys = {msgspec.json.decode(line)["key"] for line in output.splitlines() if line.startswith("{")}
    assert {"v", "sc", "fc\0t/#", "rt/1"} == keys


def test_damage_in_it_is_found(tmp_path: Path) -> None:
    make_data(tmp_path)
    (segment,) = (tmp_path / "sessions").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    code, output = run("verify", str(tmp_path))
    assert code != 0
    assert "sessions/" in output
    assert "NOT SOUND" in output
