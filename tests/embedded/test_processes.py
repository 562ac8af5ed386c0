"""Embedded brokers in programs that fork, start processes, stop twice and fail: nothing is left in use."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.reference_broker.broker import Broker, BrokerClosedError
from assay.reference_broker.config import BrokerConfig, ListenerConfig
from assay.reference_broker.storage.disk import DirectoryInUseError

CONNECT = b"\x10\x0d\0\4MQTT\4\2\0\0\0\1c"


def config_of(path: Path, port: int = 0) -> BrokerConfig:
    return BrokerConfig(data_dir=str(path), listeners=(ListenerConfig(port=port),))


@contextmanager
def forked(work: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """A child that does its work, tells its result and lives until the block ends."""
    told, tell = os.pipe()
    may_end, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(tell, work().encode())
            os.close(end)
            os.read(may_end, 1)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(may_end)
    try:
        yield lambda: os.read(told, 65_536).decode()
    finally:
        os.close(end)
        os.close(told)
        os.waitpid(child, 0)


def connected(broker: Broker) -> socket.socket:
    client = socket.create_connection((broker.host, broker.port), timeout=60)
    client.sendall(CONNECT)
    assert client.recv(4) == b"\x20\x02\0\0"
    return client


def test_lock_port_and_connections_are_free_while_a_forked_child_lives(tmp_path: Path) -> None:
    broker = Broker(config_of(tmp_path)).start()
    port = broker.port
    client = connected(broker)
    broker.queues.publish("q", b"1")
    with forked(lambda: "lives") as result:
        assert result() == "lives"
        broker.queues.publish("q", b"2")
        broker.stop()
        assert client.recv(1) == b"", "the child keeps no connection open"
        with Broker(config_of(tmp_path, port)) as second:
            assert second.queues.stats("q").depth == 2
    client.close()


def test_calls_in_a_forked_child_are_refused_at_once_and_the_parent_goes_on(tmp_path: Path) -> None:
    broker = Broker(config_of(tmp_path)).start()
    subscription = broker.queues.subscribe("q").start()
    calls: list[Callable[[], object]] = [
        lambda: broker.queues.publish("q", b"x"),
        lambda: broker.queues.stats("q"),
        lambda: broker.publish("t", b"x"),
        broker.snapshot,
        lambda: broker.port,
    ]

    def work() -> str:
        found: list[str] = []
        for call in calls:
            try:
                found.append(f"answered {call()}")
            except BrokerClosedError as error:
                found.append("forked" if f"process {os.getppid()}" in str(error) else str(error))
        subscription.cancel()
        broker.stop()
        with Broker() as own:
            own.queues.publish("mine", b"x")
            found.append(f"own {own.queues.stats('mine').depth}")
        try:
            Broker(config_of(tmp_path)).start()
        except DirectoryInUseError:
            found.append("in use")
        return ",".join(found)

    with forked(work) as result:
        assert result() == ",".join(["forked"] * len(calls) + ["own 1", "in use"])
    broker.queues.publish("q", b"still here")
    received = subscription.get(timeout_s=20)
    assert received is not None
    assert received.payload == b"still here"
    received.ack()
    broker.stop()


def test_a_child_forked_while_another_thread_calls_does_not_hang() -> None:
    with Broker() as broker:
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                broker.queues.publish("q", b"x")

        threads = [threading.Thread(target=publish) for _ in range(3)]
        for thread in threads:
            thread.start()

        def work() -> str:
            try:
                broker.queues.stats("q")
            except BrokerClosedError:
                return "refused"
            return "answered"

        for _ in range(5):
            with forked(work) as result:
                assert result() == "refused"
        stop.set()
        for thread in threads:
            thread.join()
        assert broker.queues.stats("q").depth > 0


def in_process(path: str) -> None:
    with Broker(config_of(Path(path))) as broker:
        broker.queues.publish("q", b"x")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing(tmp_path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with Broker(config_of(tmp_path / "parent")) as broker:
        # What is spawned imports anew, and finds no test modules.
        target, arguments = (in_process, (str(tmp_path / "child"),)) if method == "fork" else (os.getpid, ())
        child = context.Process(target=target, args=arguments)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        broker.queues.publish("q", b"x")
        assert broker.queues.stats("q").depth == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_programs_that_are_started_inherit_nothing(tmp_path: Path) -> None:
    with Broker(config_of(tmp_path)) as broker:
        broker.queues.publish("q", b"x")
        client = connected(broker)
        paths = "(f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd'))"
        script = f"import os; print(*(os.readlink(path) for path in {paths} if os.path.exists(path)), sep='\\n')"
        found = subprocess.run(
            [sys.executable, "-c", script], close_fds=False, check=True, capture_output=True, text=True, timeout=60
        )
        assert str(tmp_path) not in found.stdout
        assert "socket:" not in found.stdout
        client.close()


def forgotten(path: Path) -> None:
    broker = Broker(config_of(path)).start()
    broker.queues.publish("q", b"x")
    threads = [thread for thread in threading.enumerate() if thread.name == "assay-broker"]
    del broker
    gc.collect()
    for thread in threads:
        thread.join(60)


def in_use() -> tuple[int, set[str]]:
    """Open descriptors, and names of our threads."""
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    return descriptors, {thread.name for thread in threading.enumerate() if thread.name.startswith("assay")}


def run_twice(path: Path) -> None:
    broker = Broker(config_of(path))
    for _ in range(2):
        with broker:
            broker.queues.publish("q", b"x")
    broker.stop()


def stop_elsewhere(path: Path) -> None:
    broker = Broker(config_of(path)).start()
    broker.queues.publish("q", b"x")
    thread = threading.Thread(target=broker.stop)
    thread.start()
    thread.join()
    broker.stop()


def stop_in_a_callback(path: Path) -> None:
    broker = Broker(config_of(path)).start()
    done = threading.Event()

    def callback(_received: object) -> None:
        broker.stop()
        done.set()

    broker.queues.publish("q", b"x")  # not after the subscription: an earlier message may have ended it all by then
    subscription = broker.queues.subscribe("q", callback=callback).start()
    assert done.wait(60)
    subscription.cancel()


def fail_inside(path: Path) -> None:
    def inside() -> None:
        with Broker(config_of(path)) as broker:
            broker.queues.publish("q", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()


def fail_to_listen(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        Broker(config_of(path, taken.getsockname()[1])).start()


def fail_to_lock(path: Path) -> None:
    with Broker(config_of(path)), pytest.raises(DirectoryInUseError):
        Broker(config_of(path)).start()


def fail_to_open(path: Path) -> None:
    config = BrokerConfig(data_dir=str(path), listeners=(ListenerConfig(port=0),))
    original = Broker(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.reference_broker.node.BrokerNode._open_sessions", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            original.start()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "life",
    [run_twice, stop_elsewhere, stop_in_a_callback, forgotten, fail_inside, fail_to_listen, fail_to_lock, fail_to_open],
)
def test_however_it_ends_nothing_is_left(tmp_path: Path, life: Callable[[Path], None]) -> None:
    run_twice(tmp_path)
    before = in_use()
    life(tmp_path)
    assert in_use() == before
    with Broker(config_of(tmp_path)) as broker:
        broker.queues.publish("q", b"x")


def test_stopping_in_its_own_loop_does_not_wait_for_itself() -> None:
    broker = Broker().start()
    stopped = threading.Event()

    async def stop() -> None:
        broker.stop()
        stopped.set()

    thread = broker._thread
    broker._call(stop, 20)
    assert stopped.is_set()
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
