"""Hooks: somebody else decides about each publish and each subscription, and cannot be asked."""

from __future__ import annotations

import re
from typing import Any

from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.http.context import BRIDGE, QUEUES, HttpContext, http_case
from assay.conformance.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription, Will

_HOOKED, _FREE = "hooked/a", "free/a"


def _settings(fail: str) -> dict[str, Any]:
    """Nobody listens where the hooks are asked; about the topics below ``hooked`` alone."""
    hooks = {"url": "http://127.0.0.1:9/", "allow_private": True, "fail": fail, "topics": ["hooked/#", "$queue/hooked"]}
    return {"hooks": hooks}


async def _asked(ctx: HttpContext) -> int:
    """Questions so far; none of them had an answer."""
    figures = (await ctx.me.get("/metrics")).body.decode()
    found = re.search(r"^assay_hooks_undecided_total (\d+)", figures, re.MULTILINE)
    if found is None:
        ctx.unsupported("/metrics does not count what hooks were asked")
    return int(found[1])


@http_case(
    "hooks/who-cannot-be-asked-allows",
    QUEUES,
    BRIDGE,
    clauses=("H-HOOK-1", "H-HOOK-2"),
    requires=("mqtt5", "mqtt311"),
    settings=_settings("allow"),
    mutant="hooks-asked-about-what-is-sent-again",
    kills=("hooks-asked-about-all-topics", "hooks-that-fail-deny"),
    limit_s=8.0,
)
async def allows(ctx: HttpContext) -> None:
    """With ``fail: allow`` all goes on where hooks cannot be asked, and they are asked once of each message.

    Of subscriptions and publishes at each QoS, over MQTT in both versions and over HTTP, also to a queue, and of a
    will. A PUBLISH of QoS 2 that is sent again before its PUBREL is no new one. Other topics are nobody's.
    """
    asked = 0
    for version in (5, 4):
        client = await ctx.connect(version=version, name=f"client of {version}")
        for topic in (_FREE, _HOOKED):
            each = int(topic == _HOOKED)
            client.send(Subscribe(packet_id=9, subscriptions=(Subscription(filter=topic, qos=2),)))
            codes = (await client.expect(Suback)).reason_codes
            ctx.must(codes[0] < FIRST_FAILURE_CODE, f"{client.name}: expected {topic} to be granted; seen {codes}")
            asked += each
            for qos in (0, 1, 2):
                body = b"%d at %d" % (version, qos)
                publish = Publish(topic=topic, payload=body, qos=qos, packet_id=qos and 7)
                client.send(publish)
                if qos == 1:
                    await client.expect(Puback, skipping=(Publish,))
                if qos == 2:
                    client.send(Publish(topic=topic, payload=body, qos=2, packet_id=7, dup=True))
                    for _ in range(2):
                        await client.expect(Pubrec, skipping=(Publish,))
                    client.send(Pubrel(packet_id=7))
                    await client.expect(Pubcomp, skipping=(Publish, Pubrel))
                asked += each
            await client.barrier()
            ctx.same(f"questions behind what version {version} did on {topic}", await _asked(ctx), asked)
        await client.disconnect()
    reader = await ctx.connect(version=5, name="reader")
    await reader.subscribe(Subscription(filter=_HOOKED, qos=1))
    for topic in (_HOOKED, "$queue/hooked"):
        ctx.status(await ctx.me.post("/publish", {"topic": topic, "payload": "eA=="}), 200)
    await reader.expect_publish(_HOOKED, b"x")
    await ctx.connect(version=5, name="mortal", will=Will(topic=_HOOKED, payload=b"gone"))
    ctx.same("questions", await _asked(ctx), asked + 4)


@http_case(
    "hooks/who-cannot-be-asked-denies",
    QUEUES,
    BRIDGE,
    clauses=("H-HOOK-1", "H-HOOK-2"),
    requires=("mqtt5", "mqtt311"),
    settings=_settings("deny"),
    mutant="hooks-that-fail-allow",
    kills=("hooks-not-asked-about-subscriptions",),
    limit_s=8.0,
)
async def denies(ctx: HttpContext) -> None:
    """With ``fail: deny``, as it is by default, what hooks cannot be asked about is refused as by an access rule.

    A subscription, and a publish at each QoS, by HTTP too; in 3.1.1 the subscription, as it has no code for the other.
    Other topics go on.
    """
    for version, code in ((5, 0x87), (4, 0x80)):
        client = await ctx.connect(version=version, name=f"client of {version}")
        client.send(
            Subscribe(packet_id=9, subscriptions=(Subscription(filter=_HOOKED, qos=1), Subscription(filter=_FREE)))
        )
        codes = list((await client.expect(Suback)).reason_codes)
        ctx.same("the answers to subscriptions", (codes[0], codes[1] < FIRST_FAILURE_CODE), (code, True))
        if version == 5:
            client.send(Publish(topic=_HOOKED, payload=b"x", qos=0))
            client.send(Publish(topic=_HOOKED, payload=b"x", qos=1, packet_id=10))
            ctx.same("the code", (await client.expect(Puback)).reason_code, code)
            client.send(Publish(topic=_HOOKED, payload=b"x", qos=2, packet_id=11))
            ctx.same("the code", (await client.expect(Pubrec)).reason_code, code)
        await client.publish(_FREE, b"free", qos=1)
        await client.expect_publish(_FREE, b"free")
    for topic in (_HOOKED, "$queue/hooked"):
        ctx.status(await ctx.me.post("/publish", {"topic": topic, "payload": "eA=="}), 403)
    ctx.status(await ctx.me.post("/publish", {"topic": _FREE, "payload": "eA=="}), 200)
