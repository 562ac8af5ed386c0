"""The reference broker as a process: it says where it listens, and ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.conformance import adapter
from assay.conformance.adapter import broker_config, main, reference_broker_endpoint
from assay.conformance.nursery import Nursery
from assay.conformance.targets import ProbeError, TargetStartError, handshake, load_target

COMMAND = [sys.executable, "-m", "assay.conformance.adapter"]


def test_it_says_where_it_listens_and_ends_with_its_input() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] is True
        assert ready["host"] == "127.0.0.1"
        assert ready["pid"] == process.pid
        process.stdin.close()
        assert process.wait(60) == 0


def test_it_ends_on_sigterm() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


def test_an_unknown_mutant_is_a_usage_error() -> None:
    assert main(["--mutant", "v3-no-such-mutant"]) == 2


def test_a_wrong_configuration_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("mqtt: {maximum_qos: 7}\n", encoding="utf-8")
    assert main(["--config", str(path)]) == 2


def test_listeners_of_a_configuration_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("node: x\nlisteners: [{port: 1883}, {port: 1884}]\n", encoding="utf-8")
    config = broker_config(path, 0)
    assert config.node == "x"
    assert [(listener.host, listener.port) for listener in config.listeners] == [("127.0.0.1", 0)]


def test_a_nursery_forks_brokers_and_ends_them() -> None:
    target = load_target("reference")
    with Nursery() as nursery:
        with nursery.broker(target, "") as sound, nursery.broker(target, "v3-every-second-ping-lost") as broken:
            assert sound.endpoint.port != broken.endpoint.port
            assert handshake(sound.endpoint, 4).reason_code == handshake(broken.endpoint, 4).reason_code == 0
            ended = sound.endpoint
        with nursery.broker(load_target("mosquitto"), "") as later:
            assert handshake(later.endpoint, 5).reason_code == 0
    with pytest.raises(ProbeError):
        handshake(ended, 4)


def test_all_brokers_of_a_nursery_have_its_settings_before_those_of_their_cases(tmp_path: Path) -> None:
    target = load_target("reference")
    settings = {"data_dir": str(tmp_path), "mqtt": {"receive_maximum": 7, "topic_alias_maximum": 3}}
    with Nursery(settings=settings) as nursery:
        with nursery.broker(target, "") as broker:
            assert handshake(broker.endpoint, 5).properties.receive_maximum == 7
            assert list(tmp_path.iterdir()), "it has a disk"
        with nursery.broker(target, "", settings={"mqtt": {"receive_maximum": 9}}) as broker:
            properties = handshake(broker.endpoint, 5).properties
            assert (properties.receive_maximum, properties.topic_alias_maximum) == (9, 3)


def test_brokers_that_start_at_the_same_time_get_their_own_answers() -> None:
    bad, good = "v3-no-such-mutant", "v5-connack-says-more"

    def start(mutant: str) -> str:
        try:
            with nursery.broker(load_target("reference"), mutant) as broker:
                return str(handshake(broker.endpoint, 5).reason_code)
        except TargetStartError as error:
            return str(error)

    with Nursery() as nursery, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(start, [bad, good] * 8))
    assert answers[1::2] == ["0"] * 8
    assert all(bad in answer for answer in answers[::2]), answers


def test_a_nursery_that_is_gone_says_so_at_once() -> None:
    target = load_target("reference")
    with Nursery() as nursery:
        nursery._process.kill()
        nursery._process.wait(60)
        with pytest.raises(TargetStartError, match="has ended"), nursery.broker(target, ""):
            pass


def test_a_nursery_reports_what_does_not_start() -> None:
    with (
        Nursery() as nursery,
        pytest.raises(TargetStartError, match="unknown mutant"),
        nursery.broker(load_target("reference"), "v3-no-such-mutant"),
    ):
        pass


def test_a_forked_broker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(adapter, "_forked_broker", lambda *_asked: signal.pause())
    nursery = adapter.Nursery()
    nursery.start("", "", "unused", 1)
    (pid,) = nursery._lives
    nursery.stop(pid)
    nursery.stop(pid)
    nursery.stop_all()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_websocket_listener_is_kept_on_a_free_port_and_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("listeners: [{port: 1883}, {port: 8083, transport: websocket}]\n", encoding="utf-8")
    assert [listener.port for listener in broker_config(path, 0).listeners] == [0, 0]
    command = [*COMMAND, "--config", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        assert ready["websocket_port"] not in (0, 8083, ready["port"])
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_nursery_applies_the_configuration_of_the_target() -> None:
    target = load_target("reference")
    with Nursery() as nursery, nursery.broker(target, "") as broker:
        url = str(broker.target.capabilities["websocket_url"])
        assert url.startswith("ws://127.0.0.1:")
        assert "{" not in url


def test_it_runs_in_this_process_too() -> None:
    with reference_broker_endpoint() as endpoint:
        assert handshake(endpoint, 4).reason_code == 0
        assert handshake(endpoint, 5).reason_code == 0
