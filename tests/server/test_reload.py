"""SIGHUP and ``Broker.reload``: users and rules are read again, and a bad configuration changes nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import AuthConfig, BrokerConfig, ConfigError, ListenerConfig

WAIT_S = 20.0
CONNECT = bytes.fromhex("101700044d51545404c200000001610003616e6e0003616e6e")
"""3.1.1, client id ``a``, user ``ann``, password ``ann``."""
RULES = "- {topic: 'in/#', access: readwrite}\n"
SUBSCRIBE = bytes.fromhex("82090001000469") + b"n/#\x00"
GRANTED, REFUSED = b"\x90\x03\x00\x01\x00", b"\x90\x03\x00\x01\x80"

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")


class Served:
    """``assay serve`` with a configuration, a password file and a rules file."""

    def __init__(self, folder: Path) -> None:
        self.config, self.users, self.rules = folder / "broker.yaml", folder / "users", folder / "rules.yaml"
        self.users.write_text(f"ann:{hash_password(b'ann')}\n")
        self.rules.write_text(RULES)
        self.config.write_text("auth: {password_file: users}\nacl: {file: rules.yaml}\n")
        command = [sys.executable, "-m", "assay.cli", "serve", "--port", "0", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def hang_up(self, says: str) -> str:
        """Send SIGHUP and wait for what the log says of it."""
        os.kill(self.process.pid, signal.SIGHUP)
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if says in line)

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        client.sendall(CONNECT)
        return client


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    broker = Served(tmp_path)
    yield broker
    broker.process.terminate()
    assert broker.process.wait(WAIT_S) == 0
    broker.process.communicate()


def test_sighup_reads_users_and_rules_again(served: Served) -> None:
    with served.connect() as client:
        assert client.recv(4) == b"\x20\x02\x00\x00"
        client.sendall(SUBSCRIBE)
        assert client.recv(5) == GRANTED
        served.rules.write_text("- {topic: 'out/#', access: read}\n")
        served.hang_up("those of the configuration now")
        client.sendall(SUBSCRIBE)
        assert client.recv(5) == REFUSED
        served.rules.write_text(RULES + "- {topic: '#/x', access: read}\n")
        assert "rules.yaml" in served.hang_up("not read again")
        client.sendall(SUBSCRIBE)
        assert client.recv(5) == REFUSED, "the broker goes on as it was"
        served.rules.write_text(RULES)
        served.config.write_text(served.config.read_text() + "mqtt: {maximum_qos: 1}\n")
        assert served.hang_up("needs a restart").rstrip().endswith(": mqtt")
        served.users.write_text(f"bob:{hash_password(b'bob')}\n")
        served.hang_up("those of the configuration now")
        assert client.recv(5) == b"", "ann is no user any more"
    with served.connect() as client:
        assert client.recv(5) == b"\x20\x02\x00\x04"


def test_an_embedded_broker_is_reloaded_from_any_thread() -> None:
    listeners = (ListenerConfig(port=0),)
    with Broker(BrokerConfig(listeners=listeners)) as broker:
        open_ = AuthConfig(anonymous=False)
        assert broker.reload(BrokerConfig(listeners=listeners, auth=open_)) == []
        assert broker.config.auth == open_
        with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
            client.sendall(bytes.fromhex("100d00044d515454040200000001") + b"a")
            assert client.recv(5) == b"\x20\x02\x00\x05"
        missing = msgspec.structs.replace(open_, password_file="/nowhere/users")
        with pytest.raises(ConfigError, match="nowhere"):
            broker.reload(BrokerConfig(listeners=listeners, auth=missing))
        assert broker.reload() == []
