"""Three RabbitMQ nodes with a quorum queue on all of them, from the packages of the machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from assay.conformance.targets.process import free_port
from assay.conformance.targets.rabbitmq_node import NotInstalledError, environment, find_home, installed_release
from assay.faults.failover.amqp import AmqpPublisher
from assay.faults.failover.measure import FailoverError, LeaderFault
from assay.faults.failover.processes import NodeProcess

NODES: Final = 3
QUEUE: Final = "failover"
_RA_NAME: Final = f"%2F_{QUEUE}"
_START_TIMEOUT_S: Final = 120.0
_COMMAND_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.5
_CONFIG: Final = """
listeners.tcp.1 = 127.0.0.1:{port}
cluster_formation.peer_discovery_backend = classic_config
{nodes}
log.console = true
log.console.level = warning
log.file = false
"""
_STATUS: Final = re.compile(r'<<"Raft State">>,(\w+)\}.*?<<"Log Index">>,(\d+)', re.DOTALL)


class RabbitmqCluster:
    """The nodes; see :class:`assay.faults.failover.measure.ReplicatedBroker`."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.version = installed_release(home)
        self._home = home
        epmd_port = free_port()
        self._ports = [free_port() for _ in range(NODES)]
        distribution_ports = [free_port() for _ in range(NODES)]
        self._names = [f"assay{port}@localhost" for port in distribution_ports]
        listed = "\n".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in enumerate(self._names, 1)
        )
        self._environments = []
        self._processes = []
        for index, port in enumerate(distribution_ports):
            place = folder / f"n{index}"
            place.mkdir(parents=True)
            (place / "rabbitmq.conf").write_text(_CONFIG.format(port=self._ports[index], nodes=listed), "utf-8")
            (place / "enabled_plugins").write_text("[].\n", "utf-8")
            (place / "rabbitmq-env.conf").write_text("", "utf-8")
            cookie = place / ".erlang.cookie"
            cookie.write_text("ASSAYFAILOVER", "utf-8")
            cookie.chmod(0o400)
            env = environment(place, epmd_port=epmd_port, distribution_port=port, node=self._names[index])
            self._environments.append(env)
            self._processes.append(NodeProcess([str(home / "sbin" / "rabbitmq-server")], place, env))
        epmd = shutil.which("epmd", path=self._environments[0]["PATH"])
        if epmd is None:
            raise FailoverError("epmd of Erlang was not found on the PATH: install erlang-base")
        place = folder / "epmd"
        place.mkdir()
        mapper = [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"]
        self._mapper = NodeProcess(mapper, place, self._environments[0])
        self._ask_at = 0

    @property
    def nodes(self) -> int:
        return NODES

    def start(self) -> None:
        """Start all, and declare the queue once they are a cluster. Raises :class:`FailoverError`."""
        self._mapper.start()
        for process in self._processes:
            process.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._eval("length(rabbit_nodes:all_running()).").strip() != str(NODES):
            if time.monotonic() > deadline:
                raise FailoverError(f"the nodes did not find each other: {self._processes[0].log_tail()}")
            time.sleep(_POLL_S)
        self.connect(0).close()

    def stop(self) -> None:
        for process in [*self._processes, self._mapper]:
            process.stop()

    def _eval(self, expression: str) -> str:
        """What an expression of Erlang gives on a node; empty when it fails."""
        command = [str(self._home / "sbin" / "rabbitmqctl"), "-n", self._names[self._ask_at], "eval", expression]
        try:
            done = subprocess.run(
                command,
                env=self._environments[self._ask_at],
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def leader(self) -> int:
        """By a question that the leader itself answers to a follower, whoever thinks what."""
        told = self._eval(f"{{ok, _, {{_, Node}}}} = ra:members({{'{_RA_NAME}', node()}}), Node.")
        for index, name in enumerate(self._names):
            if name in told:
                return index
        raise FailoverError(f"the queue has no leader: {told}")

    def connect(self, node: int) -> AmqpPublisher:
        self._ask_at = node
        return AmqpPublisher(self._ports[node], QUEUE)

    def hurt(self, node: int, fault: LeaderFault) -> None:
        self._processes[node].hurt(fault)

    def heal(self, node: int, fault: LeaderFault) -> None:
        self._processes[node].heal(fault)

    def wait_until_whole(self, timeout_s: float) -> None:
        """Until one leads, two follow, and all have the same log."""
        deadline = time.monotonic() + timeout_s
        told = ""
        while time.monotonic() < deadline:
            told = self._eval(f'rabbit_quorum_queue:status(<<"/">>, <<"{QUEUE}">>).')
            found = _STATUS.findall(told)
            states = sorted(state for state, _ in found)
            if states == ["follower", "follower", "leader"] and len({index for _, index in found}) == 1:
                return
            time.sleep(_POLL_S)
        raise FailoverError(f"not all replicas were current within {timeout_s:g} s: {told}")

    def stored(self) -> int:
        publisher = self.connect(self._ask_at)
        publisher.close()
        return publisher.messages


@contextmanager
def rabbitmq_cluster(folder: Path) -> Iterator[RabbitmqCluster]:
    """Three nodes below ``folder`` for a while. Raises :class:`FailoverError`."""
    try:
        cluster = RabbitmqCluster(find_home(), folder)
    except NotInstalledError as error:
        raise FailoverError(str(error)) from error
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
