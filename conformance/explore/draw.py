"""Lives as Hypothesis draws them. What it draws first in a list is what it shrinks to.

Each life has a :class:`Bent`: what it does without leaves room for the rest of it to meet (swarm testing). Bugs of two
or three features together are found by lives of few features, not by those that have something of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from assay.conformance.explore import life as plan
from assay.conformance.explore.topics import matches
from assay.conformance.targets import CapabilityValue

CLIENTS = 4
TOPICS = (
    "assay/{t}/a",
    "assay/{t}/a/b",
    "assay/{t}/b",
    "assay/{t}",
    "assay/{t}/a/b/c",
    "assay/{t}//b",
    "assay/{t}/a/",
    "/{t}/a",
    "{t}",
    "$assay/{t}/a",
    "assay/{t}/A",
    "assay/{t}/a.b",
    "assay/{t}/a b é.*>",
    "assay/{t}/\U0001f600\ufeff/$x",
)
FILTERS = (
    "assay/{t}/a",
    "assay/{t}/#",
    "assay/{t}/+",
    "assay/{t}/a/#",
    "assay/{t}/+/b",
    "assay/{t}/a/b",
    "+/{t}/a",
    "+/{t}/#",
    "assay/+/a/+",
    "/{t}/+",
    "+/+/a",
    "#",
    "{t}",
    "+",
    "assay/{t}/a/+",
    "assay/{t}//b",
    "$assay/{t}/#",
    "assay/{t}/a b é.*>",
    "assay/{t}/+/$x",
)
SHARES = (
    "$share/g/assay/{t}/a",
    "$share/g/assay/{t}/#",
    "$share/h/assay/{t}/a",
    "$share/g/assay/{t}/+",
    "$share/h/+/{t}/#",
)
TIMES_S = (100_000, 50)
"""Expiry intervals and delays: :data:`ADVANCES_S` add up to nothing near them."""
ADVANCES_S = (30, 90, 300_000)
SMALL_PACKET_BYTES = 400
"""A client's Maximum Packet Size that most messages fit."""
SIZES_BYTES = (8, 8, 8, 0, 0, 200, 20_000, 70_000)

_qos = st.integers(0, 2)
_client = st.sampled_from((0, 0, 0, 1, 1, 2, 3))
"""Much happens to one of them: states meet there."""
_rarely = st.sampled_from((False, False, False, True))
_picked = st.integers(0, 7).map(str)
"""Stands for a topic or filter until the life has its few: lives of few topics are those in which things meet."""


def _clients(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[plan.Client]:
    versions = [version for version, name in ((5, "mqtt5"), (4, "mqtt311")) if capabilities.get(name, False)]
    clock = bool(capabilities.get("clock", False))
    will = st.builds(
        plan.WillPlan,
        topic=_picked,
        qos=_qos,
        retain=_rarely,
        delay_s=st.sampled_from((0, 0, *TIMES_S[::-1])),
        rich=_rarely,
    )
    return st.builds(
        plan.Client,
        version=st.sampled_from((versions * 2)[:3]),
        clean=st.booleans() if capabilities.get("persistent_sessions", True) else st.just(True),
        expiry_s=st.sampled_from(TIMES_S),
        keep_alive_s=st.sampled_from((0, 0, 50)) if clock else st.just(plan.keep_alive_s(capabilities)),
        receive_maximum=st.sampled_from((0, 0, 1, 2, 10)),
        alias_maximum=st.sampled_from((0, 0, 2)),
        max_packet_bytes=st.sampled_from((0,) * 7 + (SMALL_PACKET_BYTES,)),
        will=st.one_of(st.none(), st.none(), will),
    )


class Bent(msgspec.Struct, frozen=True, kw_only=True):
    """What the publishes and subscriptions of a life are like."""

    retain: tuple[bool, ...]
    qos: tuple[int, ...]
    expiry_s: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    ways: str
    """Filters by kind: p = plain, s = a share."""


_bents = st.builds(
    Bent,
    retain=st.sampled_from(((False, False, True), (False, False, True), (True,), (False,))),
    qos=st.sampled_from(((0, 1, 2), (0, 1, 2), (1,), (2,))),
    expiry_s=st.sampled_from(((0, 0, 0, *TIMES_S), (0,), (0, *TIMES_S))),
    sizes_bytes=st.sampled_from((SIZES_BYTES, (8,))),
    ways=st.sampled_from(("ppps", "ppps", "p", "ps")),
)


def _filter_plans(ways: str) -> st.SearchStrategy[plan.FilterPlan]:
    plain = st.builds(
        plan.FilterPlan,
        filter=_picked,
        qos=_qos,
        no_local=_rarely,
        retain_as_published=st.booleans(),
        retain_handling=st.sampled_from((0, 0, 1, 2)),
    )
    shares = st.sampled_from((0, 0, 1, 2, 3, 4)).map(lambda index: SHARES[index])
    share = st.builds(plan.FilterPlan, filter=shares, qos=_qos, retain_as_published=st.booleans())
    return st.one_of(*(share if way == "s" else plain for way in ways))


def _publishes(bent: Bent, cuts: st.SearchStrategy[plan.Cut]) -> st.SearchStrategy[plan.Publish]:
    return st.builds(
        plan.Publish,
        client=_client,
        topic=_picked,
        qos=st.sampled_from(bent.qos),
        retain=st.sampled_from(bent.retain),
        size_bytes=st.sampled_from(bent.sizes_bytes),
        expiry_s=st.sampled_from(bent.expiry_s),
        rich=_rarely,
        alias=st.sampled_from((0, 0, 0, 1, 2)),
        again=_rarely,
        cut=cuts,
    )


def _steps(capabilities: Mapping[str, CapabilityValue], bent: Bent) -> st.SearchStrategy[Any]:
    publish = _publishes(bent, st.sampled_from((*(plan.Cut.NOT,) * 8, plan.Cut.ACK_UNREAD, plan.Cut.BEFORE_PUBREL)))
    ways = bent.ways if capabilities.get("shared", True) else "p"
    filters = st.lists(_filter_plans(ways), min_size=1, max_size=3)
    subscribe = st.builds(
        plan.Subscribe, client=_client, filters=filters.map(tuple), identifier=st.sampled_from((0, 1, 2, 268_435_455))
    )
    unsubscribed = st.lists(_picked, min_size=1, max_size=2)
    ordinary: list[st.SearchStrategy[Any]] = [
        publish,
        subscribe,
        st.builds(plan.Unsubscribe, client=_client, filters=unsubscribed.map(tuple)),
        st.builds(plan.Leave, client=_client, how=st.sampled_from(plan.Leaving)),
        st.builds(plan.Join, client=_client, afresh=_rarely),
        st.builds(
            plan.Burst,
            publishes=st.lists(_publishes(bent, st.just(plan.Cut.NOT)), min_size=2, max_size=6).map(tuple),
        ),
        st.builds(plan.Withhold, client=_client, what=st.sampled_from(plan.Hold)),
    ]
    weights = [7, 6, 1, 2, 1, 1, 1]
    weighted = [index for index, weight in enumerate(weights) for _ in range(weight)]
    return st.sampled_from(weighted).flatmap(lambda index: ordinary[index])


def _turns(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[tuple[plan.Step, ...]]:
    """What happens to the broker between two parts of a life: a restart, a move of its clock, or both."""
    able = [name for name in ("restart", "clock") if capabilities.get(name, False)]
    if not able:
        return st.just(())
    restart, advance = st.just(plan.Restart()), st.builds(plan.Advance, seconds=st.sampled_from(ADVANCES_S))
    ways: Sequence[tuple[st.SearchStrategy[Any], ...]] = {
        ("restart",): ((restart,), (restart,), ()),
        ("clock",): ((advance,), (advance,), ()),
        ("restart", "clock"): ((restart,), (restart,), (advance,), (restart, advance), (advance, restart), ()),
    }[tuple(able)]
    return st.one_of(*(st.tuples(*way) for way in ways))


class _Dresser:
    """Puts topics and filters in the place of their numbers."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.matching = [entry for entry in FILTERS if any(matches(entry, topic) for topic in topics)]
        self.subscribed: dict[int, list[str]] = {}

    def topic(self, number: str) -> str:
        return self.topics[int(number) % len(self.topics)]

    def filter(self, number: str) -> str:
        """Mostly one that matches a topic of this life."""
        if not number.isdigit():
            return number
        index = int(number)
        return self.matching[index % len(self.matching)] if index < 6 else FILTERS[index * 7 % len(FILTERS)]

    def client(self, client: plan.Client) -> plan.Client:
        if client.will is None:
            return client
        topic = self.topic(client.will.topic)
        will = msgspec.structs.replace(client.will, topic=topic.removeprefix("$"))  # a $ topic may be refused
        return msgspec.structs.replace(client, will=will)

    def _publish(self, step: plan.Publish) -> plan.Publish:
        return msgspec.structs.replace(step, topic=self.topic(step.topic))

    def step(self, step: Any) -> plan.Step:
        match step:
            case plan.Publish():
                return self._publish(step)
            case plan.Burst():
                return plan.Burst(publishes=tuple(self._publish(one) for one in step.publishes))
            case plan.Subscribe():
                filters = tuple(msgspec.structs.replace(one, filter=self.filter(one.filter)) for one in step.filters)
                self.subscribed.setdefault(step.client, []).extend(one.filter for one in filters)
                return msgspec.structs.replace(step, filters=filters)
            case plan.Unsubscribe():
                known = self.subscribed.get(step.client, [])
                names = [known[int(one) % len(known)] if known else self.filter(one) for one in step.filters]
                return msgspec.structs.replace(step, filters=tuple(dict.fromkeys(names)))
        return step  # type: ignore[no-any-return]


def _dressed(clients: list[plan.Client], steps: tuple[Any, ...], topics: list[str]) -> plan.Life:
    dresser = _Dresser(tuple(topics))
    return plan.Life(
        clients=tuple(dresser.client(client) for client in clients), steps=tuple(dresser.step(step) for step in steps)
    )


def lives(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[plan.Life]:
    """Lives that a broker with these capabilities can be asked to live; one in four has restarts or a moved clock."""
    clients = st.lists(_clients(capabilities), min_size=CLIENTS, max_size=CLIENTS)
    topics = st.lists(st.sampled_from((*TOPICS[:3] * 4, *TOPICS)), min_size=1, max_size=3)
    turns = _turns(capabilities)

    @cache
    def steps(bent: Bent) -> st.SearchStrategy[tuple[plan.Step, ...]]:
        step = _steps(capabilities, bent)
        some, few = (st.lists(step, max_size=size).map(tuple) for size in (12, 8))
        quiet = st.tuples(some, some, some)
        eventful = st.tuples(few, turns, few, turns, few, turns, few)
        return st.one_of(quiet, quiet, quiet, eventful).map(
            lambda parts: tuple(step for part in parts for step in part)
        )

    return st.builds(_dressed, clients, _bents.flatmap(steps), topics)
