"""Lives as chance draws them: each by its number from the seed of its campaign, whatever came before it.

Each life has a :class:`Bent`: what it does without leaves room for the rest of it to meet (swarm testing). Bugs of two
or three features together are found by lives of few features, not by those that have something of everything.

Hypothesis drew them once. It makes five of six test cases by copying a part of one over another, which it takes for
worth a try; here, it made five of six lives the like of the one before, and most of the client's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from assay.conformance.explore import life as plan
from assay.conformance.explore.life import TIMES_S
from assay.conformance.explore.topics import matches, pattern
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
ADVANCES_S = (30, 90, 300_000)
SMALL_PACKET_BYTES = 400
"""A client's Maximum Packet Size that most messages fit."""
SIZES_BYTES = (8, 8, 8, 0, 0, 200, 20_000, 70_000)


_T = TypeVar("_T")
_PICKS = tuple(map(str, range(8)))
"""A number stands for a topic or filter until the life has its few: lives of few topics are those in which things
meet."""
_RARELY = (False, False, False, True)
_LEAVING = (plan.Leaving.RESET, plan.Leaving.RESET, plan.Leaving.DISCONNECT, plan.Leaving.OTHER_EXPIRY)
_CUTS = (*(plan.Cut.NOT,) * 12, *tuple(plan.Cut)[1:])
_LIKE = (-1, -1, *range(CLIENTS))
_IDENTIFIERS = (0, 1, 2, 268_435_455)
_DELAYS_S = {"w": (0, 0, *TIMES_S), "d": TIMES_S[1:]}
_TURNS = ("", "", "", "j", "jj", "jj", "b", "b", "bb", "bb", "bjb")
"""Between parts of a life: j = a client goes and is back, b = something happens to the broker."""


class Bent(msgspec.Struct, frozen=True, kw_only=True):
    """What a life is like."""

    lasting: tuple[bool, ...]
    """Of clients: whether they keep no session."""
    wills: str
    """Of clients: n = none, w = a will, d = one with a short delay."""
    who: tuple[int, ...]
    """Much happens to one of them: states meet there."""
    filters: int
    """How many different ones are subscribed to."""
    kinds: tuple[int, ...]
    """How often each kind of step comes: publish, subscribe, unsubscribe, leave, join, burst, withhold."""
    retain: tuple[bool, ...]
    qos: tuple[int, ...]
    expiry_s: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    ways: str
    """Filters by kind: p = plain, s = a share."""
    turns: str


_MIXED, _COMING_AND_GOING, _SUBSCRIBING = (7, 6, 1, 2, 1, 1, 1), (5, 3, 1, 4, 3, 1, 4), (5, 8, 3, 1, 1, 1, 1)


def _bent(chance: Random) -> Bent:
    pick = chance.choice
    return Bent(
        lasting=pick(((False, True), (False, True), (False,))),
        wills=pick(("nnw", "nnw", "n", "dn")),
        who=pick(((0, 0, 0, 1, 1, 2, 3), (0, 0, 0, 1, 1, 2, 3), (0, 0, 1))),
        filters=pick((len(FILTERS), len(FILTERS), 3, 1)),
        kinds=pick((_MIXED, _MIXED, _COMING_AND_GOING, _SUBSCRIBING)),
        retain=pick(((False, False, True), (False, False, True), (True,), (False,))),
        qos=pick(((0, 1, 2), (0, 1, 2), (1,), (2,))),
        expiry_s=pick(((0, 0, 0, *TIMES_S), (0,), (0, *TIMES_S), TIMES_S[1:])),
        sizes_bytes=pick((SIZES_BYTES, (8,))),
        ways=pick(("ppps", "ppps", "p", "ps")),
        turns=pick(_TURNS),
    )


class _Draw:
    """One life of a bent, on a broker with these capabilities."""

    def __init__(self, chance: Random, capabilities: Mapping[str, CapabilityValue], bent: Bent) -> None:
        self._chance, self._capabilities, self._bent = chance, capabilities, bent
        kinds = self._publish, self._subscribe, self._unsubscribe, self._leave, self._join, self._burst, self._withhold
        self._kinds: Sequence[Callable[[], plan.Step]] = kinds
        self._loaded: tuple[int, ...] = ()
        """Clients with something under way or waiting."""

    def _can(self, name: str, *, otherwise: bool = False) -> bool:
        return bool(self._capabilities.get(name, otherwise))

    def _pick(self, items: Sequence[_T]) -> _T:
        return self._chance.choice(items)

    def _rarely(self) -> bool:
        return self._pick(_RARELY)

    def client(self) -> plan.Client:
        versions = [version for version, name in ((5, "mqtt5"), (4, "mqtt311")) if self._can(name)]
        return plan.Client(
            version=self._pick((versions * 2)[:3]),
            clean=self._pick(self._bent.lasting) or not self._can("persistent_sessions", otherwise=True),
            expiry_s=self._pick(TIMES_S),
            keep_alive_s=self._pick((0, 0, 50)) if self._can("clock") else plan.keep_alive_s(self._capabilities),
            receive_maximum=self._pick((0, 0, 1, 2, 10)),
            alias_maximum=self._pick((0, 0, 2)),
            max_packet_bytes=self._pick((0,) * 7 + (SMALL_PACKET_BYTES,)),
            will=self._will(self._pick(self._bent.wills)),
        )

    def _will(self, way: str) -> plan.WillPlan | None:
        if way == "n":
            return None
        qos, delay_s = self._chance.randint(0, 2), self._pick(_DELAYS_S[way])
        return plan.WillPlan(
            topic=self._pick(_PICKS), qos=qos, retain=self._rarely(), delay_s=delay_s, rich=self._rarely()
        )

    def _who(self) -> int:
        return self._pick(self._bent.who)

    def _publish(self, cuts: Sequence[plan.Cut] = _CUTS) -> plan.Publish:
        bent = self._bent
        return plan.Publish(
            client=self._who(),
            topic=self._pick(_PICKS),
            qos=self._pick(bent.qos),
            retain=self._pick(bent.retain),
            size_bytes=self._pick(bent.sizes_bytes),
            expiry_s=self._pick(bent.expiry_s),
            rich=self._rarely(),
            alias=self._pick((0, 0, 0, 1, 2)),
            again=self._rarely(),
            cut=self._pick(cuts),
        )

    def _publishes(self, least: int, most: int) -> tuple[plan.Publish, ...]:
        return tuple(self._publish((plan.Cut.NOT,)) for _ in range(self._chance.randint(least, most)))

    def _filter(self) -> plan.FilterPlan:
        qos, as_published = self._chance.randint(0, 2), self._pick((False, True))
        if self._pick(self._bent.ways) == "s" and self._can("shared", otherwise=True):
            return plan.FilterPlan(filter=f"s{self._pick(_PICKS)}", qos=qos, retain_as_published=as_published)
        return plan.FilterPlan(
            filter=self._pick(_PICKS),
            qos=qos,
            no_local=self._rarely(),
            retain_as_published=as_published,
            retain_handling=self._pick((0, 0, 1, 2)),
        )

    def _subscribe(self) -> plan.Step:
        filters = tuple(self._filter() for _ in range(self._chance.randint(1, 3)))
        return plan.Subscribe(client=self._who(), filters=filters, identifier=self._pick(_IDENTIFIERS))

    def _unsubscribe(self) -> plan.Step:
        filters = tuple(self._pick(_PICKS) for _ in range(self._chance.randint(1, 2)))
        return plan.Unsubscribe(client=self._who(), filters=filters)

    def _leave(self) -> plan.Step:
        return plan.Leave(client=self._who(), how=self._pick(tuple(plan.Leaving)))

    def _join(self) -> plan.Step:
        return plan.Join(client=self._who(), afresh=self._rarely(), like=self._pick(_LIKE))

    def _burst(self) -> plan.Step:
        return plan.Burst(publishes=self._publishes(2, 6))

    def _withhold(self) -> plan.Step:
        return plan.Withhold(client=self._who(), what=self._pick(tuple(plan.Hold)))

    def part(self, most: int) -> Iterator[plan.Step]:
        for kind in self._chance.choices(self._kinds, self._bent.kinds, k=self._chance.randint(0, most)):
            yield kind()

    def load(self) -> Iterator[plan.Step]:
        """What leaves something under way in a session, or waiting for clients, for a turn to meet; or nothing."""
        clients = self._loaded = tuple(dict.fromkeys((self._who(), self._who())))
        kind = self._chance.randrange(6)
        withholds, leaves = kind in (0, 1, 4), kind in (2, 3, 4)
        for client in clients if withholds else ():
            yield plan.Withhold(client=client, what=self._pick((plan.Hold.FIRST, plan.Hold.PUBCOMP, plan.Hold.MIXED)))
        for client in clients if leaves else ():
            yield plan.Leave(client=client, how=self._pick(_LEAVING))
        if not (withholds or leaves):
            return
        others = [client for client in range(CLIENTS) if client not in clients]
        for one in self._publishes(1, 3):
            yield msgspec.structs.replace(one, client=others[one.client % len(others)])
        for client in clients if withholds and leaves else ():
            yield plan.Join(client=client)  # what waited is under way by now

    def turn(self, kind: str) -> Iterator[plan.Step]:
        """A client that goes and is back, or a restart, a move of the clock, or both."""
        restart, move = plan.Restart(), plan.Advance(seconds=self._pick(ADVANCES_S))
        short = plan.Advance(seconds=ADVANCES_S[0])  # two of them are longer than the short intervals, one is not
        can = self._can("restart"), self._can("clock")
        if kind == "b" and any(can):
            ways: Mapping[tuple[bool, bool], Sequence[tuple[plan.Step, ...]]] = {
                (True, True): (
                    *((restart,), (restart,), (move,), (restart, move), (move, restart)),
                    (restart, move, restart),
                    (short, restart, short),
                ),
                (True, False): ((restart,),),
                (False, True): ((move,),),
            }
            yield from self._pick(ways[can])
            return
        client = self._pick((self._who(), *self._loaded))
        if self._pick((True, False)):
            yield plan.Leave(client=client, how=self._pick(_LEAVING))
        yield plan.Join(client=client, like=self._pick(_LIKE))

    def steps(self) -> Iterator[plan.Step]:
        yield from self.part(12)
        for kind in self._bent.turns:
            yield from self.load()
            yield from self.turn(kind)
            yield from self.part(8)
        if not self._bent.turns:
            yield from self.part(20)

    def stream(self) -> Iterator[plan.Step]:
        """Much of the same at once, which a broker may read, route, write and acknowledge as one."""
        pick = self._pick
        sender, readers = self._who(), tuple(dict.fromkeys((self._who(), self._chance.randrange(CLIENTS))))
        topic, identifier = pick(_PICKS), pick((0, 0, 1))
        like = plan.Publish(
            client=sender,
            topic=topic,
            qos=pick((0, 1, 1, 2, 2)),
            size_bytes=pick((8, 8, 200, 2_000)),
            rich=self._rarely(),
        )
        for client in readers:
            entry = plan.FilterPlan(filter=pick(_PICKS), qos=pick((0, 1, 1, 2, 2)))
            yield plan.Subscribe(client=client, filters=(entry,), identifier=identifier)
        bursts = pick((1, 1, 1, 2, 2, 9))  # packet identifiers of nine need two bytes
        for _ in range(bursts):
            if pick((True, False, False)) and bursts < 9:
                yield plan.Withhold(client=pick(readers), what=pick(tuple(plan.Hold)))
            if pick((True, False, False)):
                yield plan.Leave(client=pick(readers), how=pick(_LEAVING))
            found = [like] * (pick((7, 8, 9, 16, 17, 33)) if bursts < 9 else 33)
            for _ in range(pick((0, 0, 0, 1, 2))):
                changes: dict[str, Any] = pick(
                    [{"topic": pick(_PICKS)}, {"qos": 1}, {"size_bytes": 9}, {"retain": True}, {"client": 0}]
                )
                found[self._chance.randrange(len(found))] = msgspec.structs.replace(like, **changes)
            yield plan.Burst(publishes=tuple(found), together=True)
            if pick((True, False)) and bursts < 9:
                client = pick((sender, *readers))
                yield from pick(
                    (
                        (plan.Join(client=client),),
                        (plan.Leave(client=client, how=pick(_LEAVING)), plan.Join(client=client)),
                        (plan.Restart() if self._can("restart") else plan.Join(client=client),),
                        (plan.Withhold(client=client), plan.Unsubscribe(client=client, filters=(topic,))),
                    )
                )

    def spread(self) -> Iterator[plan.Step]:
        """Many topics below one, again and again, while filters for some or all of them come and go."""
        pick, sender = self._pick, self._who()
        readers = tuple(dict.fromkeys((self._who(), self._chance.randrange(CLIENTS))))
        above = pick(("assay/{t}/m", "assay/{t}/m/n"))
        topics = [f"{above}/{number}" for number in range(pick((3, 9, 17, 40)))]
        filters = (f"{above}/+", f"{above}/#", "assay/{t}/#", "assay/{t}/m/+", *topics[:2])
        for _ in range(pick((2, 3, 5))):
            for _ in range(pick((1, 1, 2))):
                entry, reader = plan.FilterPlan(filter=pick(filters), qos=pick((0, 1, 2))), pick(readers)
                if pick((True, True, False)):
                    yield plan.Subscribe(client=reader, filters=(entry,), identifier=pick((0, 0, 1)))
                else:
                    yield plan.Unsubscribe(client=reader, filters=(entry.filter,))
            qos, is_mixed, retain = pick((0, 1, 1, 2)), self._rarely(), self._rarely() and self._rarely()
            yield plan.Burst(
                publishes=tuple(
                    plan.Publish(
                        client=sender,
                        topic=topic,
                        qos=pick((0, 1, 2)) if is_mixed else qos,
                        retain=retain,
                        size_bytes=pick((8, 8, 200)) if is_mixed else 8,
                    )
                    for topic in (topics if pick((True, True, False)) else [pick(topics) for _ in range(8)])
                ),
                together=pick((True, True, False)),
            )
            if self._can("restart") and self._rarely():
                yield plan.Restart()
            elif self._rarely():
                yield plan.Leave(client=pick((sender, *readers)), how=pick(_LEAVING))

    def topics(self) -> tuple[str, ...]:
        return tuple(self._pick((*TOPICS[:3] * 4, *TOPICS)) for _ in range(self._chance.randint(1, 3)))


class _Dresser:
    """Puts topics and filters in the place of their numbers."""

    def __init__(self, topics: tuple[str, ...], filters: int) -> None:
        self.topics = topics
        self.matching = [entry for entry in FILTERS if any(matches(entry, topic) for topic in topics)]
        self.any: tuple[str, ...] = FILTERS
        if filters < len(FILTERS):
            first = sum(map(len, topics))  # as good as any
            self.any = tuple(self.matching[(first + each) % len(self.matching)] for each in range(filters))
            self.matching = list(self.any)
        self.shares = [entry for entry in SHARES if any(matches(pattern(entry), topic) for topic in topics)] or SHARES
        self.subscribed: dict[int, list[str]] = {}

    def topic(self, number: str) -> str:
        return self.topics[int(number) % len(self.topics)]

    def filter(self, number: str) -> str:
        """Mostly one that matches a topic of this life; with an s before it, of a share."""
        if number.startswith("s"):
            return self.shares[int(number[1:]) % len(self.shares)]
        index = int(number)
        return self.matching[index % len(self.matching)] if index < 6 else self.any[index * 7 % len(self.any)]

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
                return msgspec.structs.replace(step, publishes=tuple(self._publish(one) for one in step.publishes))
            case plan.Subscribe():
                filters = tuple(msgspec.structs.replace(one, filter=self.filter(one.filter)) for one in step.filters)
                self.subscribed.setdefault(step.client, []).extend(one.filter for one in filters)
                return msgspec.structs.replace(step, filters=filters)
            case plan.Unsubscribe():
                known = self.subscribed.get(step.client, [])
                names = [known[int(one) % len(known)] if known else self.filter(one) for one in step.filters]
                return msgspec.structs.replace(step, filters=tuple(dict.fromkeys(names)))
        return step  # type: ignore[no-any-return]


def drawn(seed: int, number: int, capabilities: Mapping[str, CapabilityValue]) -> plan.Life:
    """A life that a broker with these capabilities can be asked to live."""
    chance = Random(f"{seed}/{number}")
    bent = _bent(chance)
    draw = _Draw(chance, capabilities, bent)
    dresser = _Dresser(draw.topics(), bent.filters)
    clients = [dresser.client(draw.client()) for _ in range(CLIENTS)]
    steps = [dresser.step(step) for step in draw.steps()]
    stream = Random(f"{seed}/{number}/stream")
    if number % 3 == 0 and stream.choice((True, False)):
        steps += [dresser.step(step) for step in _Draw(stream, capabilities, bent).stream()]
    elif number % 6 == 1:
        steps += _Draw(Random(f"{seed}/{number}/spread"), capabilities, bent).spread()
    if stream.choice((True, *[False] * 5)):
        some = stream.randrange(CLIENTS)
        clients[some] = msgspec.structs.replace(clients[some], pieces=True)
    return plan.Life(clients=tuple(clients), steps=tuple(steps))
