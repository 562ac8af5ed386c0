"""Target files are read strictly; brokers are started from them, probed, and stopped without a trace."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from assay.conformance.targets import (
    CAPABILITIES,
    DEFAULT_CAPABILITIES,
    CapabilityValue,
    Endpoint,
    ProbeError,
    StartHook,
    Target,
    TargetError,
    TargetStartError,
    handshake,
    hosted_target,
    load_target,
    parse_target,
    probe,
    running,
    shipped_targets,
)
from assay.conformance.targets.process import crowding

MINIMAL = 'schema = "assay.target/1"\nname = "x"\n'

TINY_BROKER = """
import json, socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2] == "json":
    port = listener.getsockname()[1]
    print(json.dumps({"ready": True, "host": "127.0.0.1", "port": port, "version": "9.9"}), flush=True)
def serve():
    while True:
        connection, _ = listener.accept()
        data = connection.recv(1000)
        # Byte 8 is the protocol level: 3.1.1 is accepted, 5.0 refused.
        connection.sendall(bytes.fromhex("20020000") if data[8] == 4 else bytes.fromhex("2003008400"))
        connection.recv(1000)
        connection.close()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def tiny_broker(tmp_path: Path) -> str:
    path = tmp_path / "tiny.py"
    path.write_text(TINY_BROKER, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", shipped_targets())
def test_shipped_targets_are_valid_and_named_like_their_file(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.start is not None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = 'x'\ncolour = 'red'\n", "colour"),
        ("description = 'no name'\n", "name"),
        ("schema = 'assay.target/2'\nname = 'x'\n", "assay.target/2"),
        ("name = 'x'\n[capabilities]\nqos7 = true\n", "capabilities.qos7 is unknown"),
        ("name = 'x'\n[capabilities]\nqos2 = 'yes'\n", "capabilities.qos2 must be of type bool"),
        ("name = 'x'\n[capabilities]\nreceive_maximum = true\n", "must be of type int"),
        ("name = 'x'\n[capabilities]\nwebsocket_url = 'http://a/b'\n", "must begin with ws:// or wss://"),
        ("name = 'x'\n[capabilities]\nauthentication_password = 'p\u00e4ss'\n", "must be ASCII"),
        ("name = 'x'\n[endpoint]\nport = 0\n", "endpoint.port"),
        ("name = 'x'\n[endpoint]\nport = '1883'\n", "$.endpoint.port"),
        ("name = 'x'\n[start]\ncommand = []\n", "start.command is empty"),
        ("name = 'x'\n[start]\ncommand = ['a']\nsleep_s = 3\n", "sleep_s"),
        ("name = 'x'\n[start]\ncommand = ['x']\nmaven = ['group:artifact']\n", "is not group:artifact:version"),
        ("name = 'x'\n[[expect_fail]]\ncase = 'a/b/c'\nreason = 'r'\n", "link"),
        ("name = 'x'\n[[expect_fail]]\ncase = 'a/b/c'\nreason = ' '\nlink = 'l'\n", "needs a reason and a link"),
        ("name = 'x'\n" + "[[expect_fail]]\ncase = 'a/b/c'\nreason = 'r'\nlink = 'l'\n" * 2, "listed twice"),
        ("name = 'x'\n[capabilities]\nclock = true\n", "clock, settings are those of the reference broker"),
        ("name = 'x'\n[capabilities]\nrestart = true\n", "capabilities.restart needs a [restart] table"),
        ("name = 'x'\n[restart]\nsignal = 'KILL'\n", "restart.command"),
        ("name = 'x'\n[restart]\ncommand = ['a']\n[start]\ncommand = ['a']\n", "restart.command"),
        ("name = x\n", "target"),
    ],
)
def test_wrong_target_files_are_refused_with_the_key(text: str, complaint: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert complaint in str(caught.value)


def test_a_file_is_loaded_by_path_and_its_name_is_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL, encoding="utf-8")
    assert load_target(str(path)).name == "x"
    path.write_text("name = 3", encoding="utf-8")
    with pytest.raises(TargetError, match=r"mine\.toml"):
        load_target(str(path))
    with pytest.raises(TargetError, match="cannot read"):
        load_target(str(tmp_path / "absent.toml"))


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(TargetError, match="mosquitto, nats, qpid, rabbitmq, rabbitmq-amqp091, reference"):
        load_target("rabbit")


def test_every_capability_is_explained() -> None:
    assert set(DEFAULT_CAPABILITIES) <= set(CAPABILITIES)


@pytest.mark.parametrize(("port_from", "arguments"), [("stdout", ("0", "json")), ("free", ("{port}", "quiet"))])
def test_a_broker_is_started_probed_and_stopped(tiny_broker: str, port_from: str, arguments: tuple[str, str]) -> None:
    hook = StartHook(command=("{python}", tiny_broker, *arguments), port_from=port_from)  # type: ignore[arg-type]
    target = Target(name="tiny", start=hook)
    with running(target) as broker:
        assert broker.pid is not None
        assert broker.version == ("9.9" if port_from == "stdout" else "")
        capabilities = probe(target, broker.endpoint)
        assert (capabilities["mqtt311"], capabilities["mqtt5"]) == (True, False)
        endpoint, process = broker.endpoint, broker.process
    assert process is not None
    assert process.poll() is not None
    with pytest.raises(OSError):
        socket.create_connection((endpoint.host, endpoint.port), timeout=1)


@pytest.mark.parametrize("placeholder", ["{websocket_port}", "{spare_port}"])
def test_placeholders_in_capabilities_are_filled_in(placeholder: str, tiny_broker: str) -> None:
    hook = StartHook(command=("{python}", tiny_broker, "{port}", "quiet"))
    wanted: dict[str, CapabilityValue] = {"websocket_url": f"ws://127.0.0.1:{placeholder}/mqtt", "queues": False}
    with running(Target(name="tiny", start=hook, capabilities=wanted)) as broker:
        found = probe(broker.target, broker.endpoint)
    port = str(found["websocket_url"]).removeprefix("ws://127.0.0.1:").removesuffix("/mqtt")
    assert 0 < int(port) <= 65_535
    assert int(port) != broker.endpoint.port


def test_the_lesser_reference_target_is_as_little_as_a_server_may_be() -> None:
    target = load_target("reference-lesser")
    with running(target) as broker:
        found = probe(broker.target, broker.endpoint)
    lacking = ("qos2", "retain", "wildcards", "shared", "subscription_identifiers")
    assert [found[name] for name in lacking] == [False] * len(lacking)
    assert (found["receive_maximum"], found["topic_alias_maximum"], found["maximum_packet_size"]) == (2, 0, 1_024)


def test_a_broker_that_ends_at_once_is_reported_with_its_log() -> None:
    hook = StartHook(command=(sys.executable, "-c", "import sys; sys.exit('no such listener')"))
    with pytest.raises(TargetStartError, match="no such listener"), running(Target(name="x", start=hook)):
        pass


def test_a_command_that_does_not_exist_says_so() -> None:
    hook = StartHook(command=("no-such-broker",))
    with pytest.raises(TargetStartError, match="is it installed"), running(Target(name="x", start=hook)):
        pass


def test_a_ready_line_must_be_json() -> None:
    hook = StartHook(command=(sys.executable, "-c", "print('hello')"), port_from="stdout")
    with pytest.raises(TargetStartError, match="first line must be JSON"), running(Target(name="x", start=hook)):
        pass


def test_a_broker_that_never_answers_is_given_up(tmp_path: Path) -> None:
    hook = StartHook(command=(sys.executable, "-c", "import sys; sys.stdin.read()"), ready_timeout_s=0.4)
    with pytest.raises(TargetStartError, match="no handshake"), running(Target(name="x", start=hook)):
        pass


LATE_LISTENER = """
import socket, sys, threading
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    client, _ = listener.accept()
    client.recv(1000)
    client.sendall(bytes.fromhex("20020000"))
    threading.Event().wait(0.4)  # in which the bench has its handshake
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))):
        sys.stdin.read()
"""


def test_a_broker_has_started_when_its_websocket_listens_too() -> None:
    """Moquette's came later, and a case found nobody there."""
    hook = StartHook(command=(sys.executable, "-c", LATE_LISTENER, "{port}", "{websocket_port}"))
    said: dict[str, CapabilityValue] = {"websocket_url": "ws://127.0.0.1:{websocket_port}/mqtt", "mqtt5": False}
    with running(Target(name="x", start=hook, capabilities=said)) as broker:
        url = urlsplit(str(broker.target.capabilities["websocket_url"]))
        socket.create_connection((str(url.hostname), int(url.port or 0)), timeout=1).close()


def test_a_broker_on_a_busy_machine_has_longer_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiveMQ was taken for one that does not start again, on a machine with forty processes for a processor."""
    monkeypatch.setattr(os, "getloadavg", lambda: (40.0 * (os.cpu_count() or 1), 0.0, 0.0))
    began = time.monotonic()
    hook = StartHook(command=(sys.executable, "-c", "import sys; sys.stdin.read()"), ready_timeout_s=0.2)
    with pytest.raises(TargetStartError, match="no handshake"), running(Target(name="x", start=hook)):
        pass
    assert crowding() == pytest.approx(5.0)
    assert time.monotonic() - began >= 5 * 0.2
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert crowding() == pytest.approx(1.0)


def test_a_broker_that_should_run_already_and_does_not_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with (
        pytest.raises(ProbeError, match=f"127.0.0.1:{port} cannot be reached"),
        running(hosted_target("127.0.0.1", port)),
    ):
        pass


def test_a_port_where_no_mqtt_is_spoken_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(port=silent.getsockname()[1])
        with pytest.raises(ProbeError, match="did not answer CONNECT"):
            handshake(endpoint, 4, timeout_s=0.2)


def test_a_declaration_takes_away_but_never_adds(tiny_broker: str) -> None:
    hook = StartHook(command=("{python}", tiny_broker, "0", "json"), port_from="stdout")
    target = Target(name="tiny", start=hook, capabilities={"mqtt5": True, "qos2": False, "queues": True})
    with running(target) as broker:
        found = probe(target, broker.endpoint)
    assert (found["mqtt5"], found["qos2"], found["queues"], found["retain"]) == (False, False, True, True)


@pytest.mark.peer
@pytest.mark.skipif(not shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin"), reason="no mosquitto")
def test_mosquitto_is_started_from_its_target_file() -> None:
    target = load_target("mosquitto")
    with running(target) as broker:
        found = probe(target, broker.endpoint)
        assert broker.version
    assert (found["mqtt311"], found["mqtt5"], found["queues"]) == (True, True, False)
