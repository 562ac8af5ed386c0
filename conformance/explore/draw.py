"""Lives as Hypothesis draws them. What it draws first in a list is what it shrinks to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from conformance.explore import life as plan
from conformance.targets import CapabilityValue

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
SIZES_BYTES = (8, 8, 8, 0, 0, 200, 20_000, 70_000)

_qos = st.integers(0, 2)
_client = st.integers(0, CLIENTS - 1)
_rarely = st.sampled_from((False, False, False, True))
_topics = st.sampled_from((*TOPICS[:3] * 5, *TOPICS))
_filters = st.sampled_from((*FILTERS[:8] * 2, *FILTERS))


def _clients(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[plan.Client]:
    versions = [version for version, name in ((5, "mqtt5"), (4, "mqtt311")) if capabilities.get(name, False)]
    clock = bool(capabilities.get("clock", False))
    will = st.builds(
        plan.WillPlan,
        topic=_topics,
        qos=_qos,
        retain=_rarely,
        delay_s=st.sampled_from((0, 0, *TIMES_S[::-1])),
    )
    return st.builds(
        plan.Client,
        version=st.sampled_from((versions * 2)[:3]),
        clean=st.booleans() if capabilities.get("persistent_sessions", True) else st.just(True),
        expiry_s=st.sampled_from(TIMES_S),
        keep_alive_s=st.sampled_from((0, 0, 50)) if clock else st.just(0),
        receive_maximum=st.sampled_from((0, 0, 1, 2, 10)),
        alias_maximum=st.sampled_from((0, 0, 2)),
        will=st.one_of(st.none(), st.none(), will),
    )


def _filter_plans(shared: bool) -> st.SearchStrategy[plan.FilterPlan]:
    plain = st.builds(
        plan.FilterPlan,
        filter=_filters,
        qos=_qos,
        no_local=_rarely,
        retain_as_published=st.booleans(),
        retain_handling=st.sampled_from((0, 0, 1, 2)),
    )
    share = st.builds(plan.FilterPlan, filter=st.sampled_from(SHARES), qos=_qos, retain_as_published=st.booleans())
    return st.one_of(plain, plain, plain, share) if shared else plain


def _publishes(cuts: st.SearchStrategy[plan.Cut]) -> st.SearchStrategy[plan.Publish]:
    return st.builds(
        plan.Publish,
        client=_client,
        topic=_topics,
        qos=_qos,
        retain=st.sampled_from((False, False, True)),
        size_bytes=st.sampled_from(SIZES_BYTES),
        expiry_s=st.sampled_from((0, 0, 0, *TIMES_S)),
        rich=_rarely,
        alias=st.sampled_from((0, 0, 0, 1, 2)),
        again=_rarely,
        cut=cuts,
    )


def _steps(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[Any]:
    publish = _publishes(st.sampled_from((*(plan.Cut.NOT,) * 8, plan.Cut.ACK_UNREAD, plan.Cut.BEFORE_PUBREL)))
    filters = st.lists(_filter_plans(bool(capabilities.get("shared", True))), min_size=1, max_size=3)
    subscribe = st.builds(
        plan.Subscribe, client=_client, filters=filters.map(tuple), identifier=st.sampled_from((0, 1, 2, 268_435_455))
    )
    unsubscribed = st.lists(st.sampled_from((*FILTERS[:8], *SHARES[:3])), min_size=1, max_size=2)
    ordinary: list[st.SearchStrategy[Any]] = [
        publish,
        subscribe,
        st.builds(plan.Unsubscribe, client=_client, filters=unsubscribed.map(tuple)),
        st.builds(plan.Leave, client=_client, how=st.sampled_from(plan.Leaving)),
        st.builds(plan.Join, client=_client, afresh=_rarely),
        st.builds(
            plan.Burst,
            publishes=st.lists(_publishes(st.just(plan.Cut.NOT)), min_size=2, max_size=6).map(tuple),
        ),
        st.builds(plan.Withhold, client=_client, what=st.sampled_from(plan.Hold)),
    ]
    weights = [7, 6, 1, 2, 1, 1, 1]
    if capabilities.get("restart", False):
        ordinary.append(st.just(plan.Restart()))
        weights.append(1)
    if capabilities.get("clock", False):
        ordinary.append(st.builds(plan.Advance, seconds=st.sampled_from(ADVANCES_S)))
        weights.append(1)
    weighted = [index for index, weight in enumerate(weights) for _ in range(weight)]
    return st.sampled_from(weighted).flatmap(lambda index: ordinary[index])


def lives(capabilities: Mapping[str, CapabilityValue]) -> st.SearchStrategy[plan.Life]:
    """Lives that a broker with these capabilities can be asked to live; one in four has restarts or a moved clock."""
    quiet = {**capabilities, "restart": False, "clock": False}
    clients = st.lists(_clients(capabilities), min_size=CLIENTS, max_size=CLIENTS)

    def steps(able: Mapping[str, CapabilityValue]) -> st.SearchStrategy[tuple[plan.Step, ...]]:
        some = st.lists(_steps(able), max_size=12)
        return st.tuples(some, some, some).map(lambda parts: tuple(step for part in parts for step in part))

    return st.builds(plan.Life, clients=clients.map(tuple), steps=st.one_of(*(steps(quiet),) * 3, steps(capabilities)))
