"""Locust users for MQTT pub/sub and durable queues.

With Locust's web page (binds to every interface unless told otherwise)::

    locust -f loadtests/locustfile.py --host mqtt://127.0.0.1:1883 --web-host 127.0.0.1

headless::

    locust -f loadtests/locustfile.py --host mqtt://127.0.0.1:1883 --headless -u 10 -r 10 -t 20s MqttUser

or ``assay load locust``, which also starts the broker. Name the users to leave one out: ``QueueUser`` needs a broker
with ``$queue`` topics.

Locust's users are a closed loop: each waits for its answer before it goes on. Their latencies are honest only as long
as the broker keeps up; ``assay load run`` measures from a schedule instead. Locust rounds latencies to whole
milliseconds, too coarse for a broker on the same machine, so this file keeps its own histograms in microseconds, prints
their percentiles at the end, writes them to ``$ASSAY_LOCUST_OUT/latencies.json``, and gives Locust finer buckets for
its page. In a distributed run every worker prints its own.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import gevent

# Locust patches the standard library for gevent when it is imported; everything that opens sockets comes after it.
from locust import User, constant_throughput, events, stats, task

from loadtests.endpoint import parse_endpoint
from loadtests.gevent_client import GeventMqttClient, MqttError
from loadtests.latency_book import LatencyBook

OUT_VARIABLE = "ASSAY_LOCUST_OUT"
DEFAULT_HOST = "mqtt://127.0.0.1:1883"
PAYLOAD_BYTES = 100
TASKS_PER_USER_AND_SECOND = 20

_T = TypeVar("_T")
_numbers = itertools.count()
book = LatencyBook()


def _three_digits(response_time: float) -> float:
    """Locust's buckets, with three significant digits in place of whole milliseconds."""
    return float(f"{response_time:.3g}")


# Locust made the function to be replaced, but declares that it returns whole milliseconds.
vars(stats)["bucket_response_time"] = _three_digits


class _Timed(User):
    """Fires Locust's ``request`` event for one operation."""

    abstract = True
    wait_time = constant_throughput(TASKS_PER_USER_AND_SECOND)
    protocol = "MQTT"

    def __init__(self, environment: object) -> None:
        super().__init__(environment)
        self.name = f"locust-{os.getpid()}-{next(_numbers)}"
        self._sequence = itertools.count()
        self._clients: list[GeventMqttClient] = []

    def connect(self, role: str) -> GeventMqttClient:
        """A connection that ends with the user."""
        endpoint = parse_endpoint(self.host or DEFAULT_HOST)
        client = self.timed("connect", lambda: GeventMqttClient(endpoint, f"{self.name}-{role}"))
        self._clients.append(client)
        return client

    def timed(self, operation: str, call: Callable[[], _T], *, since: float | None = None) -> _T:
        """Run ``call`` and report it; its latency counts from ``since`` (perf_counter) or from now."""
        with self._reported(operation, time.perf_counter() if since is None else since):
            return call()

    @contextmanager
    def _reported(self, operation: str, started: float) -> Iterator[None]:
        failure: MqttError | None = None
        try:
            yield
        except MqttError as error:
            failure = error
            raise
        finally:
            self.environment.events.request.fire(
                request_type=self.protocol,
                name=operation,
                response_time=(time.perf_counter() - started) * 1_000,
                response_length=0 if operation == "connect" else PAYLOAD_BYTES,
                exception=failure,
                context={"client_id": self.name},
            )

    def payload(self) -> bytes:
        """A payload of ``PAYLOAD_BYTES`` that nobody else sends."""
        return f"{self.name}-{next(self._sequence)} ".encode().ljust(PAYLOAD_BYTES, b".")

    def on_stop(self) -> None:
        for client in self._clients:
            client.close()


class MqttUser(_Timed):
    """Publishes at QoS 0, 1 and 2 to a topic of its own and waits for the delivery on a second connection."""

    def on_start(self) -> None:
        self.publisher = self.connect("p")
        self.subscriber = self.connect("s")
        self.topic = f"locust/{self.name}"
        self.timed("subscribe", lambda: self.subscriber.subscribe(self.topic, 2))

    def _round_trip(self, qos: int) -> None:
        payload = self.payload()
        started = time.perf_counter()
        if qos:
            self.timed(f"publish qos{qos} to ack", lambda: self.publisher.publish(self.topic, payload, qos))
        else:
            self.publisher.publish(self.topic, payload, qos)
        self.timed(f"publish qos{qos} to deliver", lambda: self.subscriber.next_message(payload), since=started)

    @task(2)
    def publish_qos0(self) -> None:
        self._round_trip(0)

    @task(2)
    def publish_qos1(self) -> None:
        self._round_trip(1)

    @task(1)
    def publish_qos2(self) -> None:
        self._round_trip(2)


class QueueUser(_Timed):
    """Publishes to a durable queue of its own, consumes, and settles with ``$ack``."""

    protocol = "queue"

    def on_start(self) -> None:
        self.producer = self.connect("p")
        self.consumer = self.connect("c")
        self.topic = f"$queue/{self.name}"
        self.timed("subscribe", lambda: self.consumer.subscribe(self.topic, 1, group="locust"))

    @task
    def publish_consume_ack(self) -> None:
        payload = self.payload()
        started = time.perf_counter()
        self.timed("publish to ack", lambda: self.producer.publish(self.topic, payload, 1))
        delivery = self.timed("publish to deliver", lambda: self.consumer.next_message(payload), since=started)
        said = dict(delivery.properties.user_property)
        settlement = tuple((name, said.get(name, "")) for name in ("message-id", "group-id"))
        self.timed(
            "deliver to settle",
            lambda: self.consumer.publish(f"{self.topic}/$ack", b"", 1, user_properties=settlement),
        )


def _update_loop_clock(**_: object) -> None:
    """gevent's loop still has the time of before the imports; --run-time would end early by as long as they took."""
    gevent.get_hub().loop.update_now()


def _record(
    request_type: str, name: str, response_time: float, exception: Exception | None = None, **_: object
) -> None:
    book.add(f"{request_type}: {name}", response_time * 1_000, failed=exception is not None)


def _report(**_: object) -> None:
    print(book.text())
    folder = os.environ.get(OUT_VARIABLE)
    if folder:
        book.write(Path(folder) / "latencies.json")


class _Hook(Protocol):
    """What is used of Locust's event hooks, typed."""

    def add_listener(self, handler: Callable[..., None]) -> object: ...


def _listen(hook: _Hook, handler: Callable[..., None]) -> None:
    hook.add_listener(handler)


_listen(events.init, _update_loop_clock)
_listen(events.request, _record)
_listen(events.quitting, _report)
