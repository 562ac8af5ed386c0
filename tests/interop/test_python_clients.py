"""paho-mqtt, aiomqtt and gmqtt, unchanged, in both versions: what their users do all day."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from python_clients import CLIENTS, TCP, InteropClient, LastWill, Options, Place, RefusedError

if TYPE_CHECKING:
    from tests.interop.conftest import InteropBroker

_numbers = itertools.count(1)
BAD_CREDENTIALS = (4, 5, 0x86)
BOTH = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
Scenario = Callable[["Bench"], Awaitable[None]]


class Bench:
    """Makes clients of one library; client ids and topics are of this test alone."""

    def __init__(self, interop: InteropBroker, library: str, version: int, transport: str = TCP) -> None:
        self.number = next(_numbers)
        self._interop = interop
        self._library = library
        self._version = version
        self._transport = transport

    def topic(self, name: str) -> str:
        return f"interop/{self._library}/{self.number}/{name}"

    def client(self, name: str, **options: Any) -> InteropClient:
        transport = self._transport
        context = self._interop.context if "secure" in transport or transport == "tls" else None
        place = Place(transport, self._interop.ports[transport], context)
        client_id = f"{self._library}-{self.number}-{name}"
        return CLIENTS[self._library](place, Options(client_id=client_id, version=self._version, **options))


@pytest.fixture(params=list(CLIENTS))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def places() -> list[Any]:
    """Every library on every transport it has."""
    pairs = [(library, transport) for library, client in CLIENTS.items() for transport in client.transports]
    return [pytest.param(*pair, id=" ".join(pair)) for pair in pairs]


def run(scenario: Scenario, bench: Bench) -> None:
    asyncio.run(scenario(bench))


@BOTH
@pytest.mark.parametrize(("library", "transport"), places())
def test_messages_pass_at_every_qos_on_every_transport(
    interop: InteropBroker, library: str, transport: str, version: int
) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("s") as subscriber, bench.client("p") as publisher:
            for qos in (0, 1, 2):
                topic = bench.topic(f"q{qos}")
                assert await subscriber.subscribe(topic, qos) == qos
                sent = [b"%d" % number for number in range(20)]
                for payload in sent:
                    await publisher.publish(topic, payload, qos)
                received = [await subscriber.next() for _ in sent]
                assert [message.payload for message in received] == sent
                assert {(message.topic, message.qos, message.retain) for message in received} == {(topic, qos, False)}
            await subscriber.unsubscribe(bench.topic("q1"))
            await publisher.publish(bench.topic("q1"), b"nobody", 1)
            await publisher.publish(bench.topic("q2"), b"end", 2)
            assert (await subscriber.next()).payload == b"end"

    run(scenario, Bench(interop, library, version, transport))


@BOTH
@pytest.mark.parametrize(("library", "transport"), places())
def test_a_large_payload_arrives_whole(interop: InteropBroker, library: str, transport: str, version: int) -> None:
    payload = bytes(range(256)) * 3_900

    async def scenario(bench: Bench) -> None:
        async with bench.client("c") as client:
            await client.subscribe(bench.topic("large"), 1)
            await client.publish(bench.topic("large"), payload, 1)
            assert (await client.next()).payload == payload

    run(scenario, Bench(interop, library, version, transport))


@BOTH
def test_the_right_password_lets_in_and_a_wrong_one_does_not(
    interop: InteropBroker, library: str, version: int
) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("right", username="ann", password="secret") as client:
            assert await client.subscribe(bench.topic("t")) == 0
        for name, password in (("ann", "wrong"), ("nobody", "secret")):
            with pytest.raises(RefusedError) as refused:
                await asyncio.wait_for(bench.client("wrong", username=name, password=password).connect(), 20)
            assert refused.value.code in BAD_CREDENTIALS

    run(scenario, Bench(interop, library, version))


@BOTH
def test_retained_messages_come_with_the_subscription_until_they_are_deleted(
    interop: InteropBroker, library: str, version: int
) -> None:
    async def scenario(bench: Bench) -> None:
        topic = bench.topic("kept")
        async with bench.client("p") as publisher:
            await publisher.publish(topic, b"old", 1, retain=True)
            await publisher.publish(topic, b"kept", 1, retain=True)
        async with bench.client("s") as subscriber:
            await subscriber.subscribe(bench.topic("#"), 1)
            message = await subscriber.next()
            assert (message.topic, message.payload, message.retain) == (topic, b"kept", True)
            await subscriber.publish(topic, b"", 1, retain=True)
            assert (await subscriber.next()).payload == b"", "a live copy of the deletion"
        async with bench.client("t") as later:
            await later.subscribe(bench.topic("#"), 1)
            await later.publish(bench.topic("other"), b"end", 1)
            assert (await later.next()).payload == b"end"

    run(scenario, Bench(interop, library, version))


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_of_a_lost_client_is_published_and_that_of_one_that_left_is_not(
    interop: InteropBroker, library: str, version: int, qos: int
) -> None:
    async def scenario(bench: Bench) -> None:
        will = LastWill(bench.topic("will"), b"gone", qos, False)
        async with bench.client("w") as watcher:
            await watcher.subscribe(bench.topic("#"), 2)
            async with bench.client("leaves", will=will):
                pass
            lost = bench.client("lost", will=will)
            await lost.connect()
            lost.drop()
            message = await watcher.next()
            assert (message.topic, message.payload, message.qos) == (will.topic, b"gone", qos)
            await watcher.publish(bench.topic("end"), b"end", 1)
            assert (await watcher.next()).payload == b"end", "there was one will, of the client that was lost"
            await lost.disconnect()

    run(scenario, Bench(interop, library, version))


@BOTH
def test_a_persistent_session_gets_what_came_while_its_client_was_away(
    interop: InteropBroker, library: str, version: int
) -> None:
    async def scenario(bench: Bench) -> None:
        session = {"clean": False, "expiry_s": 300}
        topic = bench.topic("offline")
        async with bench.client("s", **session) as subscriber:
            assert subscriber.session_present in (False, None)
            await subscriber.subscribe(topic, 2)
        sent = [b"%d" % number for number in range(10)]
        async with bench.client("p") as publisher:
            for number, payload in enumerate(sent):
                await publisher.publish(topic, payload, 1 + number % 2)
        async with bench.client("s", **session) as subscriber:
            assert subscriber.session_present in (True, None)
            received = [await subscriber.next() for _ in sent]
            # Paho and aiomqtt hand a QoS 2 message over with PUBREL, so that it may come behind later ones at QoS 1.
            for qos, expected in ((1, sent[::2]), (2, sent[1::2])):
                assert [message.payload for message in received if message.qos == qos] == expected
        async with bench.client("s", clean=True) as subscriber:
            assert subscriber.session_present in (False, None)

    run(scenario, Bench(interop, library, version))


@BOTH
def test_a_session_goes_on_after_the_network_failed(interop: InteropBroker, library: str, version: int) -> None:
    async def scenario(bench: Bench) -> None:
        session = {"clean": False, "expiry_s": 300}
        first = bench.client("s", **session)
        await first.connect()
        await first.subscribe(bench.topic("t"), 1)
        first.drop()
        await first.lost()
        async with bench.client("s", **session) as again, bench.client("p") as publisher:
            await publisher.publish(bench.topic("t"), b"after", 1)
            assert (await again.next()).payload == b"after"
        await first.disconnect()

    run(scenario, Bench(interop, library, version))


@BOTH
def test_a_second_client_with_the_same_id_takes_over(interop: InteropBroker, library: str, version: int) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.client("same")
        await first.connect()
        async with bench.client("same") as second:
            code = await first.lost()
            # In 3.1.1 a server has no DISCONNECT: libraries report the lost connection in codes of their own.
            assert version == 4 or code == 0x8E
            assert await second.subscribe(bench.topic("t"), 1) == 1
            await second.publish(bench.topic("t"), b"mine", 1)
            assert (await second.next()).payload == b"mine"
            await first.disconnect()

    run(scenario, Bench(interop, library, version))


@BOTH
def test_a_filter_that_is_not_granted_is_told(interop: InteropBroker, library: str, version: int) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("c") as client:
            assert await client.subscribe("$share//x", 1) == (0x8F if version == 5 else 0x80)
            assert await client.subscribe(bench.topic("t"), 1) == 1

    run(scenario, Bench(interop, library, version))


# -- MQTT 5.0 --------------------------------------------------------------------------------------------------------


def test_properties_travel_unchanged_and_a_request_gets_its_response(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        pairs = [("name", "ünï"), ("name", "again"), ("", "empty name")]
        async with bench.client("requester") as requester, bench.client("responder") as responder:
            await responder.subscribe(bench.topic("request"), 1)
            await requester.subscribe(bench.topic("response"), 1)
            await requester.publish(
                bench.topic("request"),
                b"question",
                1,
                response_topic=bench.topic("response"),
                correlation_data=b"\0\xff7",
                content_type="text/plain",
                payload_format_indicator=1,
                message_expiry_interval=600,
                user_property=pairs,
            )
            request = await responder.next()
            properties = request.properties
            assert properties["user_property"] == pairs
            assert (properties["content_type"], properties["payload_format_indicator"]) == ("text/plain", 1)
            assert 590 <= properties["message_expiry_interval"] <= 600
            await responder.publish(
                properties["response_topic"], b"answer", 1, correlation_data=properties["correlation_data"]
            )
            response = await requester.next()
            assert (response.payload, response.properties["correlation_data"]) == (b"answer", b"\0\xff7")

    run(scenario, Bench(interop, library, 5))


def test_an_expired_message_does_not_reach_a_client_that_comes_back(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        session = {"clean": False, "expiry_s": 300}
        async with bench.client("s", **session) as subscriber:
            await subscriber.subscribe(bench.topic("t"), 1)
        async with bench.client("p") as publisher:
            await publisher.publish(bench.topic("t"), b"stale", 1, message_expiry_interval=0)
            await publisher.publish(bench.topic("t"), b"fresh", 1, message_expiry_interval=600)
        async with bench.client("s", **session) as subscriber:
            assert (await subscriber.next()).payload == b"fresh"

    run(scenario, Bench(interop, library, 5))


def test_a_topic_alias_stands_for_its_topic(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("s") as subscriber, bench.client("p") as publisher:
            await subscriber.subscribe(bench.topic("#"), 1)
            await publisher.publish(bench.topic("aliased"), b"1", 1, topic_alias=3)
            await publisher.publish("", b"2", 1, topic_alias=3)
            received = [await subscriber.next() for _ in range(2)]
            assert [(message.topic, message.payload) for message in received] == [
                (bench.topic("aliased"), b"1"),
                (bench.topic("aliased"), b"2"),
            ]

    run(scenario, Bench(interop, library, 5))


def test_a_message_names_the_subscriptions_that_it_fits(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("s") as subscriber:
            await subscriber.subscribe(bench.topic("#"), 1, identifier=7)
            await subscriber.subscribe(bench.topic("+"), 1, identifier=268_435_455)
            await subscriber.publish(bench.topic("t"), b"x", 1)
            message = await subscriber.next()
            assert sorted(message.properties["subscription_identifier"]) == [7, 268_435_455]

    run(scenario, Bench(interop, library, 5))


def test_no_local_keeps_a_client_from_its_own_messages(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("a") as one, bench.client("b") as other:
            await one.subscribe(bench.topic("t"), 1, no_local=True)
            await one.publish(bench.topic("t"), b"own", 1)
            await other.publish(bench.topic("t"), b"foreign", 1)
            assert (await one.next()).payload == b"foreign"

    run(scenario, Bench(interop, library, 5))


@BOTH
def test_members_of_a_shared_subscription_divide_the_messages(
    interop: InteropBroker, library: str, version: int
) -> None:
    async def scenario(bench: Bench) -> None:
        shared = f"$share/workers/{bench.topic('job')}"
        async with bench.client("1") as one, bench.client("2") as two, bench.client("p") as publisher:
            await one.subscribe(shared, 1)
            await two.subscribe(shared, 1)
            sent = {b"%d" % number for number in range(20)}
            for payload in sorted(sent):
                await publisher.publish(bench.topic("job"), payload, 1)
            received: list[tuple[str, bytes]] = []
            while len(received) < len(sent):
                gets = {
                    asyncio.create_task(member.next(), name=name): name for name, member in (("1", one), ("2", two))
                }
                done, waiting = await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
                received += [(gets[task], task.result().payload) for task in done]
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            assert {payload for _, payload in received} == sent
            assert {name for name, _ in received} == {"1", "2"}
            assert one.messages.empty()
            assert two.messages.empty()

    run(scenario, Bench(interop, library, version))


def test_a_client_that_takes_one_message_at_a_time_gets_them_all(interop: InteropBroker, library: str) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("s", receive_maximum=1) as subscriber, bench.client("p") as publisher:
            await subscriber.subscribe(bench.topic("t"), 2)
            sent = [b"%d" % number for number in range(30)]
            for number, payload in enumerate(sent):
                await publisher.publish(bench.topic("t"), payload, 1 + number % 2)
            assert [(await subscriber.next()).payload for _ in sent] == sent

    run(scenario, Bench(interop, library, 5))


def test_paho_is_told_that_nobody_listens(interop: InteropBroker) -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.client("p") as publisher:
            assert await publisher.publish(bench.topic("nobody"), b"x", 1) == 0x10
            await publisher.subscribe(bench.topic("#"), 1)
            assert await publisher.publish(bench.topic("somebody"), b"x", 1) == 0

    run(scenario, Bench(interop, "paho", 5))
