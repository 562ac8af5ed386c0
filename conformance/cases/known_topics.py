"""Filters and topics in every order: what was published before a filter was there, and which characters split levels.

Brokers remember who gets a topic, and look retained messages up by another road than new ones. So the tables of filters
are held against retained messages, too, and each change of a subscription comes after its topic is well known.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import delivered, meanwhile, publish_all
from assay.conformance.cases.mqtt311.topic import _MULTI_LEVEL, _SINGLE_LEVEL
from assay.conformance.connection import Connection
from assay.conformance.wire import Publish, Subscription

_V5 = 5
_NO_SEPARATORS = (".", "\\", ":", ">", "*", "%2F", "\u2215")


def _both_versions(
    slug: str, *, area: str, in_311: tuple[str, ...], in_5: tuple[str, ...], requires: tuple[str, ...], mutant: str
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", in_311), ("mqtt5", in_5)):
            if clauses:
                case(
                    f"{spec}/{area if spec == 'mqtt311' or area != 'topic' else 'topics'}/{slug}",
                    clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                    requires=requires,
                    mutant=mutant,
                    near_miss="reads-in-small-pieces",
                    limit_s=10.0,
                )(function)
        return function

    return register


@_both_versions(
    "filters-match-retained-messages-as-new-ones",
    area="retained",
    in_311=("3.3.1-6", "4.7.1-2", "4.7.1-3"),
    in_5=("3.3.1-9",),
    requires=("retain", "wildcards", "qos1"),
    mutant="retained-parent-of-a-hash-is-missed",
)
async def retained_matches(ctx: CaseContext) -> None:
    """A filter brings the retained messages of exactly those topics whose new messages it would match.

    Nine filters are held against topics with a retained message: x/# brings that of x, + those of one level, an empty
    one too.
    """
    publisher = await ctx.connect(name="publisher")
    for number, (filter_, (matching, others)) in enumerate((_SINGLE_LEVEL | _MULTI_LEVEL).items()):
        for path in (*matching, *others):
            await publisher.publish(ctx.topic(f"{number}/{path}"), b"kept", qos=1, retain=True)
        subscriber = await ctx.connect(name=filter_)
        await subscriber.subscribe(ctx.topic(f"{number}/{filter_}"))
        wanted = sorted(ctx.topic(f"{number}/{path}") for path in matching)
        messages = await delivered(ctx, publisher, subscriber, at_least=len(wanted))
        found = sorted(message.topic for message in messages)
        ctx.must(found == wanted, f"filter {filter_}: expected the retained messages of {wanted}; seen {found}")


@_both_versions(
    "only-the-slash-separates-levels",
    area="topic",
    in_311=("4.7.1-3", "4.7.3-4"),
    in_5=("4.7.3-4", "3.3.2-3"),
    requires=("wildcards", "retain", "qos1"),
    mutant="dots-separate-levels",
)
async def separators(ctx: CaseContext) -> None:
    """A full stop, and what else separates names elsewhere, is a character of a level like any other.

    For each of them, a?b is one level: the filter + gets it, ?/+ and a/b do not, and the filter a?b does not get a/b.
    So it is for new messages and for retained ones.
    """
    publisher = await ctx.connect(name="publisher")
    for number, character in enumerate(_NO_SEPARATORS):
        root = ctx.topic(f"{number}")
        odd, plain = f"{root}/a{character}b", f"{root}/a/b"
        wanted = {f"{root}/+": {odd}, odd: {odd}, plain: {plain}, f"{root}/a/+": {plain}, f"{root}/a/#": {plain}}
        early = [await _listening(ctx, name) for name in wanted]
        for topic in (odd, plain):
            await publisher.publish(topic, b"x", qos=1, retain=True)
        late = [await _listening(ctx, name) for name in wanted]
        for when, clients in (("new", early), ("retained", late)):
            for client, topics in zip(clients, wanted.values(), strict=True):
                found = {message.topic for message in await delivered(ctx, publisher, client, at_least=len(topics))}
                ctx.must(found == topics, f"filter {client.name}: expected {when} messages of {topics}; seen {found}")
        for client in (*early, *late):
            await client.disconnect()


async def _listening(ctx: CaseContext, topic_filter: str, qos: int = 0) -> Connection:
    client = await ctx.connect(name=topic_filter)
    await client.subscribe(topic_filter, qos=qos)
    return client


async def _expect(
    ctx: CaseContext, publisher: Connection, topic: str, wanted: dict[Connection, int], when: str
) -> None:
    """A message for the topic reaches these clients so often, and is waited for where it must come.

    One that was published before may come, too: nothing says when a server gets to a message of QoS 0.
    """
    publisher.send(Publish(topic=topic, payload=when.encode()))
    for client, copies in wanted.items():
        messages = await delivered(ctx, publisher, client, at_least=copies)
        found = [message.payload for message in messages if message.payload == when.encode()]
        ctx.must(len(found) == copies, f"{when}: {client.name}: expected {copies} copies; seen {messages}")


async def _walk_changes(ctx: CaseContext, prefixes: tuple[str, ...]) -> None:
    """Make, replace, double, leave and lose subscriptions to a topic that was published to before each change."""
    publisher = await ctx.connect(name="publisher")
    for number, prefix in enumerate(prefixes):
        topic = ctx.topic(f"{number}/known/topic")
        exact, wild = f"{prefix}{topic}", f"{prefix}{ctx.topic(f'{number}/+/topic')}"
        await _expect(ctx, publisher, topic, {}, "before")
        first = await _listening(ctx, exact)
        await _expect(ctx, publisher, topic, {first: 1}, "a filter without wildcards is new")
        second = await _listening(ctx, wild)
        await _expect(ctx, publisher, topic, {first: 1, second: 1}, "one with a wildcard is new")
        await first.unsubscribe(exact)
        await _expect(ctx, publisher, topic, {first: 0, second: 1}, "the first was left")
        await first.subscribe(exact)
        await _expect(ctx, publisher, topic, {first: 1, second: 1}, "the first is back")
        await second.unsubscribe(wild)
        await _expect(ctx, publisher, topic, {first: 1, second: 0}, "the second was left")
        await second.subscribe(exact.replace("$share/g", "$share/h"))
        await _expect(ctx, publisher, topic, {first: 1, second: 1}, "the second has the same topic")
        await first.disconnect()
        # Its session is over for others, too, once there is a new one: nothing says how soon it is otherwise.
        first = await ctx.connect(client_id=first.client_id, name=f"{first.name} of a new session")
        await _expect(ctx, publisher, topic, {first: 0, second: 1}, "the first has lost its session")
        third = await _listening(ctx, exact)
        await _expect(ctx, publisher, topic, {second: 1, third: 1}, "a third has come")


@_both_versions(
    "changes-hold-for-known-topics",
    area="subscribe",
    in_311=("3.8.4-3", "3.10.4-2"),
    in_5=("3.10.4-2", "4.6.0-6"),
    requires=("wildcards",),
    mutant="new-filters-unseen-by-known-topics",
)
async def known_topics(ctx: CaseContext) -> None:
    """A subscription that is made, left or lost holds for the next message, though its topic was published to before.

    Filters with and without wildcards come, go and come back, with a message for the same topic after each change.
    """
    await _walk_changes(ctx, ("",))


@_both_versions(
    "many-topics-in-one-write",
    area="publish",
    in_311=("3.3.2-3", "3.8.4-6", "4.6.0-6"),
    in_5=("3.3.2-3", "3.8.4-8", "4.6.0-5"),
    requires=("wildcards", "qos1"),
    mutant="mixed-bursts-repeat-a-packet",
)
async def many_topics(ctx: CaseContext) -> None:
    """Messages of many topics and sizes in one write reach who asked for them, each on its own topic, in their order.

    Sixty messages at QoS 1 (or as many at once as the broker takes) of six topics, most of them new, and of any size.
    One client has a filter for all of them, another for three: each gets its messages of each topic in order.
    """
    names = [ctx.topic(f"{family}/{number}") for family in ("one", "two") for number in range(3)]
    everything = await _listening(ctx, ctx.topic("#"), qos=1)
    some = await _listening(ctx, ctx.topic("two/+"), qos=1)
    publisher = await ctx.connect(name="publisher")
    messages = [
        Publish(topic=ctx.rng.choice(names), payload=b"%d " % number + b"x" * ctx.rng.choice((0, 9, 120, 200)), qos=1)
        for number in range(60)
    ]
    async with meanwhile(publish_all(publisher, messages)):
        for client, topics in ((everything, names), (some, names[3:])):
            wanted = {name: [each.payload for each in messages if each.topic == name] for name in topics}
            found: dict[str, list[bytes]] = {name: [] for name in topics}
            for _ in range(sum(map(len, wanted.values()))):
                message = await client.expect_publish()
                found.setdefault(message.topic, []).append(message.payload)
            ctx.must(found == wanted, f"filter {client.name}: expected {wanted}; seen {found}")


@_both_versions(
    "changes-hold-for-known-topics",
    area="shared",
    in_311=(),
    in_5=("4.8.2-3", "3.10.4-2"),
    requires=("wildcards", "shared"),
    mutant="new-shares-unseen-by-known-topics",
)
async def known_shares(ctx: CaseContext) -> None:
    """A shared subscription that is made, left or lost holds for the next message, though its topic is known.

    Shares with and without wildcards, of one member each, come, go and come back, with a message for the same topic
    after each change.
    """
    await _walk_changes(ctx, ("$share/g/",))


@_both_versions(
    "retain-as-published-holds",
    area="shared",
    in_311=(),
    in_5=("3.3.1-12", "3.3.1-13", "4.8.2-3"),
    requires=("retain", "shared", "qos1"),
    mutant="shares-clear-the-retain-flag",
)
async def shared_flag(ctx: CaseContext) -> None:
    """Retain As Published holds for shared subscriptions, too.

    Members of two shares, one with the option, get a message with RETAIN 1 and one without: with the option the flag is
    as it was published, without it is 0.
    """
    topic = ctx.topic("flag")
    publisher = await ctx.connect(name="publisher")
    members = {flag: await ctx.connect(name=f"member {flag}") for flag in (True, False)}
    for flag, member in members.items():
        filter_ = f"$share/s{flag}/{topic}"
        await member.subscribe(Subscription(filter=filter_, qos=1, retain_as_published=flag))
    for retain in (True, False):
        await publisher.publish(topic, b"x", qos=1, retain=retain)
        for flag, member in members.items():
            await member.expect_publish(topic, b"x", retain=retain and flag)
