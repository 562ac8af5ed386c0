"""Retain Handling, Retain As Published and the age of a subscription together (MQTT 5.0, 3.8.3.1 and 3.3.1.3)."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from itertools import product

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, delivered, meanwhile, publish_all, resume
from assay.conformance.connection import Connection
from assay.conformance.wire import Publish, Subscription, describe

_SHOWN_ROWS = 3


class Age(Enum):
    """What the subscription is to the client when it is judged."""

    NEW = "new"
    EXISTING = "existing"
    RESUMED = "existing since an earlier connection"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription."""

    handling: int
    as_published: bool
    age: Age

    @property
    def name(self) -> str:
        return f"handling {self.handling}, as published {int(self.as_published)}, {self.age.value}"

    @property
    def retained_copies(self) -> int:
        """How often the retained message comes for SUBSCRIBE (3.3.1-9, 3.3.1-10, 3.3.1-11)."""
        return int(self.handling == 0 or (self.handling == 1 and self.age is Age.NEW))


def rows(*ages: Age) -> list[Row]:
    """Six combinations of options for each age."""
    return [
        Row(handling=handling, as_published=as_published, age=age)
        for age, handling, as_published in product(ages, (0, 1, 2), (False, True))
    ]


async def _subscribed(ctx: CaseContext, row: Row, topic: str, number: int) -> Connection:
    """A client that has just subscribed with the options of the row, at the age of the row."""
    name = f"{number}"
    client = await ctx.connect(name=name, properties=LASTING)
    if row.age is not Age.NEW:
        # It exists, whether it was granted another QoS or the same.
        earlier = Subscription(
            filter=topic, qos=int(row.as_published), retain_handling=2, retain_as_published=row.as_published
        )
        await client.subscribe(earlier)
    if row.age is Age.RESUMED:
        await client.disconnect()
        client = await resume(ctx, client.client_id, name=f"{name} back")
    entry = Subscription(filter=topic, qos=1, retain_handling=row.handling, retain_as_published=row.as_published)
    await client.subscribe(entry)
    return client


async def _walk(ctx: CaseContext, *ages: Age) -> None:
    publisher, control = await ctx.connect(name="publisher"), await ctx.connect(name="control")
    wrong: list[str] = []
    for number, row in enumerate(rows(*ages)):
        topic = ctx.topic(f"{number}")
        await publisher.publish(topic, b"kept", qos=1, retain=True)
        client = await _subscribed(ctx, row, topic, number)
        # What is retained must be there before it is replaced: nothing says how soon it is sent.
        messages = await delivered(ctx, control, client, qos=1, at_least=1) if row.retained_copies else []
        live = [
            Publish(topic=topic, payload=payload, qos=1, retain=payload == b"live") for payload in (b"plain", b"live")
        ]
        async with meanwhile(publish_all(publisher, live)):
            messages += await delivered(ctx, control, client, qos=1, at_least=len(live))
        copies = Counter(message.payload for message in messages)
        wanted = {b"kept": row.retained_copies, b"plain": 1, b"live": 1}
        if any(copies[payload] != count for payload, count in wanted.items()):
            shown = "; ".join(map(describe, messages)) or "nothing"
            wrong.append(f"[{row.name}] expected kept, plain and live {tuple(wanted.values())} times; seen {shown}")
        flags = {b"kept": True, b"plain": False, b"live": row.as_published}
        for message in messages:
            client.check_flag(message, retain=flags.get(message.payload))
    ctx.must(not wrong, f"{len(wrong)} rows: {'; '.join(wrong[:_SHOWN_ROWS])}")


@case(
    "mqtt5/retained/handling-by-retain-as-published-and-age",
    clauses=("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.3.1-12", "MQTT-3.3.1-13", "MQTT-3.8.4-3"),
    requires=("retain", "qos1"),
    mutant="v5-retained-flag-follows-retain-as-published",
    kills=("v5-subscribe-beside-an-open-delivery-refused", "v5-another-qos-makes-a-subscription-new"),
    near_miss="v5-retained-before-suback",
)
async def handling(ctx: CaseContext) -> None:
    """Retain Handling decides which retained messages come, Retain As Published the flag of live ones, in every mix.

    Twelve clients subscribe with each Retain Handling and each Retain As Published, to a new filter and again to an
    existing one. The retained message comes with RETAIN 1 as often as the handling says, whatever Retain As Published
    is; a live retained message has RETAIN as the option says, and a plain one has RETAIN 0.
    """
    await _walk(ctx, Age.NEW, Age.EXISTING)


@case(
    "mqtt5/retained/handling-of-resumed-subscriptions",
    clauses=("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.3.1-12", "MQTT-3.3.1-13", "MQTT-3.1.2-5"),
    requires=("retain", "qos1", "persistent_sessions"),
    mutant="v5-resumed-subscriptions-count-as-new",
    near_miss="v5-retained-before-suback",
)
async def handling_resumed(ctx: CaseContext) -> None:
    """A subscription of a resumed session exists: subscribing again with Retain Handling 1 brings no retained message.

    Six clients subscribe, leave, resume their sessions and subscribe again with each Retain Handling and each Retain As
    Published. Handling 0 brings the retained message, 1 and 2 do not.
    """
    await _walk(ctx, Age.RESUMED)


@case(
    "mqtt5/subscribe/retain-as-published-is-replaced-too",
    clauses=("MQTT-3.8.4-3", "MQTT-3.3.1-12", "MQTT-3.3.1-13"),
    requires=("retain",),
    mutant="v5-resubscribe-keeps-retain-as-published",
    near_miss="v5-writes-in-pieces",
)
async def replaced(ctx: CaseContext) -> None:
    """Replacing a subscription replaces its Retain As Published.

    A client subscribes to a filter with Retain As Published 0, then 1, then 0. A live retained message after each has
    RETAIN as the latest option says.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    client = await ctx.connect(name="client")
    for number, as_published in enumerate((False, True, False)):
        await client.subscribe(Subscription(filter=topic, retain_handling=2, retain_as_published=as_published))
        await publisher.publish(topic, str(number).encode(), retain=True)
        await client.expect_publish(topic, str(number).encode(), retain=as_published)
