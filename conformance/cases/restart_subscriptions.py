"""Subscriptions over restarts: made, replaced by each option, removed, shared; each change has a restart of its own.

Every case goes the same way: subscribe, kill the broker under the open connection, come back, change what was
subscribed, kill again, look, leave by DISCONNECT, kill once more, look again. Both directions of a change are walked.
"""

from __future__ import annotations

import asyncio

import msgspec

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import pass_time, shares
from assay.conformance.cases.restart_support import V5, a_step_of_restarts, come_back, gone_for_good, stay, survives
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    NO_PROPERTIES,
    Properties,
    Puback,
    Publish,
    Subscription,
    Unsuback,
    Unsubscribe,
    describe,
)

_ATTEMPTS = 16
_KEPT_311 = ("3.1.2-4", "4.1.0-1")
_KEPT_5 = ("3.1.2-5", "3.1.2-23")


class _Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription; at QoS ``-1`` there is none."""

    qos: int = 1
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


_NONE = _Filter(qos=-1)


class _Cell:
    """One client with one filter, first made as ``before``, then changed to ``after``."""

    def __init__(self, ctx: CaseContext, number: int, before: _Filter, after: _Filter, share: str) -> None:
        self.ctx, self.number, self.before, self.after = ctx, number, before, after
        self.topic = ctx.topic(f"cell/{number}")
        self.filter = f"$share/{share}{number}/{self.topic}" if share else self.topic
        self.is_shared = bool(share)
        self.is_there = False
        self.client: Connection
        self.looks = 0

    async def make(self, wanted: _Filter) -> None:
        """Subscribe as wanted, or remove what there is."""
        if self.is_there and (wanted.qos < 0 or self.is_shared):
            # That a shared subscription is replaced by the next one, as others are, is not said (3.8.4-3).
            await self.client.unsubscribe(self.filter)
        self.is_there = wanted.qos >= 0
        if not self.is_there:
            return
        subscription = Subscription(
            filter=self.filter,
            qos=wanted.qos,
            no_local=wanted.no_local,
            retain_as_published=wanted.retain_as_published,
            retain_handling=2 if self.client.version >= V5 else 0,
        )
        identifier = (wanted.identifier,) if wanted.identifier else ()
        properties = Properties(subscription_identifier=identifier) if identifier else NO_PROPERTIES
        granted = await self.client.subscribe(subscription, properties=properties)
        if granted[0] != wanted.qos:
            self.ctx.unsupported(f"the broker grants QoS {granted[0]} where QoS {wanted.qos} is asked for")

    async def look(self, publisher: Connection, wanted: _Filter) -> None:
        """One message of somebody else's, flagged as retained, and one of its own must come as the options say."""
        self.looks += 1
        theirs, own = f"theirs {self.looks}".encode(), f"own {self.looks}".encode()
        is_flagged = self.before.retain_as_published or self.after.retain_as_published
        there = wanted.qos >= 0
        survives = Rule.SHARE_SURVIVES if self.is_shared else Rule.SUBSCRIPTION_SURVIVES
        name = f"{self.client.name}, look {self.looks} at {wanted}"
        expected: dict[bytes, tuple[int, bool, tuple[int, ...]]] = {}
        if there:
            expected[theirs] = (wanted.qos, wanted.retain_as_published, self._identifiers(wanted))
        if there and not wanted.no_local:
            expected[own] = (min(wanted.qos, 1), False, self._identifiers(wanted))
        seen: dict[bytes, tuple[int, bool, tuple[int, ...]]] = {}

        async def take_theirs() -> None:
            while there and theirs not in seen:
                with a_step_of_restarts(self.ctx, survives, seen):
                    packet = await self.client.receive(f"{name}: somebody else's message")
                await self._note(packet, seen, name)

        # A broker may answer a publisher only when the message was acknowledged, or pass it on only at PUBREL.
        await asyncio.gather(publisher.publish(self.topic, theirs, qos=2, retain=is_flagged), take_theirs())
        self.client.send(Publish(topic=self.topic, payload=own, qos=1, packet_id=self.client.next_packet_id()))
        answered = False
        while not answered or expected.keys() - seen.keys():
            packet = await self.client.receive(f"{name}: PUBACK and its own message")
            answered = answered or isinstance(packet, Puback)
            if not isinstance(packet, Puback):
                await self._note(packet, seen, name)
        for packet in await self.client.barrier():
            await self._note(packet, seen, name)
        self.ctx.must(seen == expected, f"{name}: expected (QoS, RETAIN, identifiers) {expected}; seen {seen}")

    @staticmethod
    def _identifiers(wanted: _Filter) -> tuple[int, ...]:
        return (wanted.identifier,) if wanted.identifier else ()

    async def _note(self, packet: object, seen: dict[bytes, tuple[int, bool, tuple[int, ...]]], name: str) -> None:
        if not isinstance(packet, Publish) or packet.payload in seen:
            self.ctx.fail(f"{name}: expected each message once; seen {packet}")
        await self.client.acknowledge(packet)
        self.ctx.must(packet.topic == self.topic, f"{name}: expected the topic {self.topic}; seen {describe(packet)}")
        seen[packet.payload] = (packet.qos, packet.retain, packet.properties.subscription_identifier)


async def _walk(ctx: CaseContext, *changes: tuple[_Filter, _Filter], share: str = "") -> None:
    cells = [_Cell(ctx, number, before, after, share) for number, (before, after) in enumerate(changes)]
    for cell in cells:
        cell.client = await stay(ctx, f"client {cell.number}")
        await cell.make(cell.before)
    await ctx.restart()
    publisher = await ctx.connect(name="publisher")
    for cell in cells:
        cell.client = await come_back(ctx, cell.client)
        await cell.look(publisher, cell.before)
        await cell.make(cell.after)
    await ctx.restart()
    publisher = await ctx.connect(name="publisher 2")
    for cell in cells:
        cell.client = await come_back(ctx, cell.client)
        await cell.look(publisher, cell.after)
    for cell in cells[:-1]:
        await cell.client.disconnect()
    await gone_for_good(ctx, cells[-1].client)
    publisher = await ctx.connect(name="publisher 3")
    for cell in cells:
        cell.client = await come_back(ctx, cell.client)
        await cell.look(publisher, cell.after)


@survives(
    "replaced-qos-of-a-subscription",
    in_311=(*_KEPT_311, "3.8.4-3", "3.8.4-6"),
    in_5=(*_KEPT_5, "3.8.4-3", "3.8.4-8"),
    requires=("qos2",),
    mutant="restart-undoes-replaced-subscriptions",
)
async def replaced_qos(ctx: CaseContext) -> None:
    """The QoS of a subscription, and the one that replaced it, hold after the broker was killed.

    Filters go from QoS 1 to 0 and to 2, and from 0 to 2. After each restart messages published at QoS 2 come at the QoS
    that was granted last.
    """
    await _walk(
        ctx, (_Filter(qos=1), _Filter(qos=0)), (_Filter(qos=1), _Filter(qos=2)), (_Filter(qos=0), _Filter(qos=2))
    )


@survives(
    "removed-subscriptions",
    in_311=(*_KEPT_311, "3.10.4-2"),
    in_5=(*_KEPT_5, "3.10.4-2"),
    requires=("qos2",),
    mutant="restart-brings-unsubscribed-filters-back",
)
async def removed(ctx: CaseContext) -> None:
    """A subscription that outlived one restart and was then removed does not come back with the next two.

    Beside it one is kept, so that the session is the same.
    """
    await _walk(ctx, (_Filter(), _NONE), (_Filter(), _Filter()))


@survives(
    "replaced-no-local",
    in_5=(*_KEPT_5, "3.8.3-3", "3.8.4-3"),
    requires=("qos2",),
    mutant="restart-forgets-no-local",
)
async def no_local(ctx: CaseContext) -> None:
    """No Local of a subscription, and its change in either direction, hold after the broker was killed.

    After each restart the client gets its own messages if and only if the last SUBSCRIBE said so.
    """
    await _walk(ctx, (_Filter(no_local=True), _Filter()), (_Filter(), _Filter(no_local=True)))


@survives(
    "replaced-retain-as-published",
    in_5=(*_KEPT_5, "3.3.1-12", "3.3.1-13", "3.8.4-3"),
    requires=("qos2", "retain"),
    mutant="restart-forgets-retain-as-published",
)
async def retain_as_published(ctx: CaseContext) -> None:
    """Retain As Published of a subscription, and its change in either direction, hold after the broker was killed.

    After each restart a message that was published with RETAIN 1 comes with the flag if and only if the last SUBSCRIBE
    said so; one without never has it.
    """
    flagged = _Filter(retain_as_published=True)
    await _walk(ctx, (flagged, _Filter()), (_Filter(), flagged))


@survives(
    "replaced-subscription-identifier",
    in_5=(*_KEPT_5, "3.3.4-3", "3.8.4-3"),
    requires=("qos2", "subscription_identifiers"),
    mutant="restart-forgets-subscription-identifiers",
)
async def identifiers(ctx: CaseContext) -> None:
    """The identifier of a subscription, another one, and none hold after the broker was killed.

    After each restart messages carry what the last SUBSCRIBE said, also a number of four bytes.
    """
    await _walk(
        ctx,
        (_Filter(identifier=7), _Filter(identifier=200_000_000)),
        (_Filter(identifier=128), _Filter()),
        (_Filter(), _Filter(identifier=1)),
    )


@survives(
    "shared-subscriptions",
    in_5=(*_KEPT_5, "4.8.2-3", "3.10.4-2"),
    requires=("qos2", "retain", "shared", "subscription_identifiers"),
    mutant="restart-forgets-options-of-shares",
)
async def shared(ctx: CaseContext) -> None:
    """Shared subscriptions, made, removed and made again with other options, hold after the broker was killed.

    Each has one member, which gets every message at the QoS, with the flag and the identifier of its last SUBSCRIBE,
    and nothing after UNSUBSCRIBE.
    """
    await _walk(
        ctx,
        (_Filter(qos=2), _Filter(qos=1)),
        (_Filter(qos=0, identifier=5), _Filter(qos=1)),
        (_Filter(), _Filter(retain_as_published=True)),
        (_Filter(), _NONE),
        share="g",
    )


@survives(
    "shares-keep-their-members",
    in_5=(*_KEPT_5, "4.8.2-3"),
    requires=("qos1", "shared"),
    mutant="restart-turns-shares-into-filters",
)
async def members(ctx: CaseContext) -> None:
    """Members of a share get each message once between them, after the broker was killed, and when one has gone.

    Two clients with lasting sessions share a filter. After each of two restarts ten messages come, each to one of them.
    One leaves the share between two restarts: then all come to the other one.
    """
    topic = ctx.topic("shared")
    filter_ = f"$share/both/{topic}"
    clients = [await stay(ctx, f"member {number}") for number in range(2)]
    for client in clients:
        await client.subscribe(Subscription(filter=filter_, qos=1))
    for turn in range(3):
        if turn == 2:
            await clients.pop().unsubscribe(filter_)
        await ctx.restart()
        clients = [await come_back(ctx, client, name=client.name) for client in clients]
        publisher = await ctx.connect(name=f"publisher {turn}")
        wanted = {b"%d %d" % (turn, number) for number in range(10)}
        seen: list[bytes] = []
        for payload in sorted(wanted):
            publisher.send(Publish(topic=topic, payload=payload, qos=1, packet_id=publisher.next_packet_id()))
            before = len(seen)
            for attempt in range(_ATTEMPTS):
                for client in clients:
                    for packet in await client.barrier():
                        if not isinstance(packet, Publish):
                            ctx.fail(f"{client.name}: expected messages only; seen {describe(packet)}")
                        await client.acknowledge(packet)
                        seen.append(packet.payload)
                if len(seen) > before:
                    break
                await pass_time(ctx, 0.05 * attempt)
            await publisher.expect(Puback)
            if len(seen) == before:
                break  # one that is missing says enough, and others wait for this case
        for client in clients:
            await client.expect_nothing()
        right = sorted(seen) == sorted(wanted)
        with a_step_of_restarts(ctx, Rule.SHARE_SURVIVES, seen):
            ctx.must(right, f"turn {turn}: expected {sorted(wanted)}, each once; seen {sorted(seen)}")


@survives(
    "what-a-member-left-is-no-more-its-own",
    in_5=("4.8.2-3", "4.5.0-1"),
    requires=("qos1", "shared"),
    mutant="restart-brings-back-what-was-passed-on",
    level="SHOULD",
)
async def passed_on(ctx: CaseContext) -> None:
    """What waited for a member that left a share, and came to another one, comes to nobody else after a restart.

    A member that takes one message at a time acknowledges none of six, and leaves the share, which a second one has
    joined. What that acknowledges before the broker is killed does not come to the first behind it, but for the one
    that was under way. At QoS 1 a message may come again, so that it is reported, not failed.
    """
    topic = ctx.topic("shared")
    filter_ = f"$share/g/{topic}"
    first = await stay(ctx, "first", receive_maximum=1)
    await first.subscribe(Subscription(filter=filter_, qos=1))
    publisher = await ctx.connect(name="publisher")
    for number in range(6):
        packet_id = publisher.next_packet_id()
        publisher.send(Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=packet_id))
    held = await first.expect_publish(topic, ack=False)
    second = await stay(ctx, "second")
    await second.subscribe(Subscription(filter=filter_, qos=1))
    first.send(Unsubscribe(packet_id=first.next_packet_id(), filters=(filter_,)))
    await first.expect(Unsuback, skipping=(Publish,))
    (taken,) = await shares([second], 0)
    await ctx.restart()
    first, second = await come_back(ctx, first), await come_back(ctx, second)
    again, _ = await shares([first, second], 0)
    twice = {each.payload for each in again} & {each.payload for each in taken} - {held.payload}
    ctx.should(not twice, f"first: expected nothing that another member had acknowledged; seen {sorted(twice)}")
