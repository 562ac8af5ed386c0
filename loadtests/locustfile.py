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
their percentiles at the end, writes them to ``$ASSAY_LOCUST_OUT/latencies.json`` and the samples to
``samples.parquet``, and gives Locust finer buckets for its page. In a distributed run (``--processes``, ``--worker``)
the master does so for all of its workers (``assay.loadtests.locust_record``).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import gevent

# Locust patches the standard library for gevent when it is imported; everything that opens sockets comes after it.
from locust import User, constant_throughput, events, stats, task
from locust.env import Environment

from assay.loadtests.endpoint import parse_endpoint
from assay.loadtests.gevent_client import GeventMqttClient, MqttError
from assay.loadtests.locust_record import LocustRecord, listen
from assay.loadtests.locust_samples import Subject
from assay.reference_broker.trace.schema import LatencyOperation

OUT_VARIABLE = "ASSAY_LOCUST_OUT"
DEFAULT_HOST = "mqtt://127.0.0.1:1883"
PAYLOAD_BYTES = 100
TASKS_PER_USER_AND_SECOND = 20

_T = TypeVar("_T")
_numbers = itertools.count()
_folder = os.environ.get(OUT_VARIABLE)
record = LocustRecord(Path(_folder) if _folder else None)


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
    queue = ""

    def __init__(self, environment: object) -> None:
        super().__init__(environment)
        self.name = f"locust-{os.getpid()}-{next(_numbers)}"
        self._sequence = itertools.count()
        self._clients: list[GeventMqttClient] = []

    def connect(self, role: str) -> GeventMqttClient:
        """A connection that ends with the user."""
        endpoint = parse_endpoint(self.host or DEFAULT_HOST)
        client = self.timed(
            LatencyOperation.CONNECT, "connect", lambda: GeventMqttClient(endpoint, f"{self.name}-{role}")
        )
        self._clients.append(client)
        return client

    def timed(
        self,
        operation: LatencyOperation,
        name: str,
        call: Callable[[], _T],
        *,
        qos: int = 0,
        since_ns: int | None = None,
    ) -> _T:
        """Run ``call`` and report it as ``name``; its latency counts from ``since_ns`` (perf_counter) or from now."""
        subject = Subject(
            name=f"{self.protocol}: {name}",
            operation=operation,
            workload=self.protocol,
            qos=qos,
            queue=self.queue,
        )
        with self._reported(subject, name, time.perf_counter_ns() if since_ns is None else since_ns):
            return call()

    @contextmanager
    def _reported(self, subject: Subject, name: str, started_ns: int) -> Iterator[None]:
        failure: MqttError | None = None
        try:
            yield
        except MqttError as error:
            failure = error
            raise
        finally:
            completed_ns = time.perf_counter_ns()
            self.environment.events.request.fire(
                request_type=self.protocol,
                name=name,
                response_time=(completed_ns - started_ns) / 1e6,
                response_length=0 if subject.operation is LatencyOperation.CONNECT else PAYLOAD_BYTES,
                exception=failure,
                context={"client_id": self.name, "sample": (subject, started_ns, completed_ns)},
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
        self.timed(LatencyOperation.SUBSCRIBE, "subscribe", lambda: self.subscriber.subscribe(self.topic, 2))

    def _round_trip(self, qos: int) -> None:
        payload = self.payload()
        started_ns = time.perf_counter_ns()
        to_ack, to_deliver = LatencyOperation.PUBLISH_TO_ACK, LatencyOperation.PUBLISH_TO_DELIVER
        name = f"publish qos{qos} to"
        if qos:
            self.timed(to_ack, f"{name} ack", lambda: self.publisher.publish(self.topic, payload, qos), qos=qos)
        else:
            self.publisher.publish(self.topic, payload, qos)
        self.timed(
            to_deliver,
            f"{name} deliver",
            lambda: self.subscriber.next_message(payload),
            qos=qos,
            since_ns=started_ns,
        )

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
        self.queue = "of each user"
        self.timed(
            LatencyOperation.SUBSCRIBE, "subscribe", lambda: self.consumer.subscribe(self.topic, 1, group="locust")
        )

    @task
    def publish_consume_ack(self) -> None:
        payload = self.payload()
        started_ns = time.perf_counter_ns()
        self.timed(
            LatencyOperation.PUBLISH_TO_ACK,
            "publish to ack",
            lambda: self.producer.publish(self.topic, payload, 1),
            qos=1,
        )
        delivery = self.timed(
            LatencyOperation.PUBLISH_TO_DELIVER,
            "publish to deliver",
            lambda: self.consumer.next_message(payload),
            qos=1,
            since_ns=started_ns,
        )
        said = dict(delivery.properties.user_property)
        settlement = tuple((name, said.get(name, "")) for name in ("message-id", "group-id"))
        self.timed(
            LatencyOperation.DELIVER_TO_SETTLE,
            "deliver to settle",
            lambda: self.consumer.publish(f"{self.topic}/$ack", b"", 1, user_properties=settlement),
            qos=1,
        )


def _update_loop_clock() -> None:
    """gevent's loop still has the time of before the imports; --run-time would end early by as long as they took."""
    gevent.get_hub().loop.update_now()


def _record(context: dict[str, object], exception: Exception | None = None, **_: object) -> None:
    subject, started_ns, completed_ns = cast("tuple[Subject, int, int]", context["sample"])
    record.add(subject, started_ns, completed_ns, failed=exception is not None)


def _install(environment: Environment, **_: object) -> None:
    _update_loop_clock()
    record.install(environment)


listen(events.init, _install)
listen(events.request, _record)
