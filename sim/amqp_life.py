"""A client of AMQP 0.9.1 on a simulated disk, and what a power loss at any point may leave of what it did.

The client declares, binds, publishes with confirms, acknowledges, commits a transaction over several queues, and takes
its topology down again, one step after the other. What a start finds must be what held before the step that was under
way, or after it, or what the step may leave in between: a publish with confirms may have reached some of its queues, an
acknowledgement that nobody confirms may be lost, a commit is all or nothing. Whoever declares all of it again in the
same words must be understood.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from assay.conformance.wire.amqp091 import Arrival
from assay.reference_broker.config import BrokerConfig, Durability, QueuesConfig, SessionsConfig
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.disk import Disk
from assay.sim.amqp_client import InMemoryClient, UnexpectedAnswerError

START: Final = 1_700_000_000.0
_TURNS: Final = 60
EXCHANGES: Final = {"events": "topic", "dead": "fanout"}
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "a": {},
    "b": {"x-max-priority": 3},
    "in": {"x-dead-letter-exchange": "dead"},
    "letters": {},
}
BINDINGS: Final = (("a", "events", "k.*"), ("b", "events", "k.*"), ("letters", "dead", ""))
INPUTS: Final = ("done", "bad", "again")
PASSING: Final = ("transient", "exclusive")
"""Queues that no start brings back."""


class State(NamedTuple):
    """What a start finds, or ought to."""

    exchanges: frozenset[str]
    queues: dict[str, tuple[str, ...]]
    """What each holds, in order."""
    bindings: frozenset[tuple[str, str, str]]


class Step(NamedTuple):
    """One thing that the client does."""

    name: str
    act: Callable[[], None]
    after: State
    between: tuple[State, ...] = ()
    """What it may leave in between."""
    may_come_twice: bool = False
    """Of what is in between, in one sense: also when it is done that may be found."""
    may_be_lost: bool = False
    """Nothing confirms it: also later the state before may be found, as long as nothing else has built on it."""


def open_node(disk: Disk, durability: Durability) -> BrokerNode:
    """A broker with one kind of durability for all. Raises :class:`LogError`."""
    config = BrokerConfig(
        queues=QueuesConfig(defaults={"durability": durability}), sessions=SessionsConfig(durability=durability)
    )
    return BrokerNode(config, disk, random.Random(1), START)


def turn(node: BrokerNode, client: InMemoryClient | None, now: float = START) -> None:
    """Turns until nothing is left to do at once, syncs included; the client hears of each what it says."""
    for _ in range(_TURNS):
        node.tick(now)
        dirty = node.take_dirty(now)
        if client is not None:
            client.collect()
        jobs = node.take_jobs(now)
        for job in jobs:
            job.run()
            node.job_done(job, None, now)
        deadline = node.next_deadline()
        if not dirty and not jobs and (deadline is None or deadline > now):
            return
    raise AssertionError("the node does not come to rest")


class AmqpLife:
    """The client, step by step; :attr:`step` is the one under way."""

    def __init__(self, disk: Disk, durability: Durability) -> None:
        self.node = open_node(disk, durability)
        self.client = InMemoryClient(self.node, lambda client: turn(self.node, client), START)
        for channel, mode in ((1, ""), (2, "confirm.select"), (3, "tx.select")):
            self.client.call(channel, "channel.open")
            if mode:
                self.client.call(channel, mode)
        self.state = State(frozenset(), {}, frozenset())
        self.step: Step | None = None
        self._unsure: list[State] = []
        """What may be found as well, since nobody confirmed otherwise."""
        self._got: dict[str, Arrival] = {}

    def run(self, steps: Callable[[AmqpLife], Iterator[Step]]) -> None:
        """All of it."""
        for step in steps(self):
            self.client.is_answered = False
            self.step = step
            step.act()
            self._unsure = [self.state, *self._unsure] if step.may_be_lost else []
            self.state = step.after
            self.step = None

    def allowed(self) -> list[State]:
        """What a start may find now."""
        step = self.step
        if step is None:
            return [self.state, *self._unsure]
        if self.client.is_answered and not step.may_be_lost:
            return [step.after, *(step.between if step.may_come_twice else ())]
        return [self.state, *self._unsure, step.after, *step.between]

    # -- steps -----------------------------------------------------------------------------------------------------

    def building(self) -> Iterator[Step]:
        """Exchanges, queues and bindings, as they come."""
        for name, kind in EXCHANGES.items():
            yield Step(
                f"declare {name}",
                lambda name=name, kind=kind: _ignore(declare_exchange(self.client, name, kind)),  # type: ignore[misc]
                self.state._replace(exchanges=self.state.exchanges | {name}),
            )
        for name in QUEUES:
            yield Step(
                f"declare {name}",
                lambda name=name: declare_queue(self.client, name),  # type: ignore[misc]
                self.state._replace(queues={**self.state.queues, name: ()}),
            )
        for binding in BINDINGS:
            yield Step(
                f"bind {binding}",
                lambda binding=binding: bind(self.client, binding),  # type: ignore[misc]
                self.state._replace(bindings=self.state.bindings | {binding}),
            )
        yield Step("declare what passes", self._declare_passing, self.state)

    def _declare_passing(self) -> None:
        self.client.call(1, "queue.declare", queue="transient")
        self.client.call(1, "queue.declare", queue="exclusive", durable=True, exclusive=True)
        self.client.call(1, "exchange.declare", exchange="transient", type_="fanout")
        for queue in PASSING:
            self.client.call(1, "queue.bind", queue=queue, exchange="events", routing_key="other.*")
            self.client.publish(1, "", queue, b"gone", {"delivery_mode": 2})
        self.client.hear()

    def working(self) -> Iterator[Step]:
        """Publishes, acknowledgements, a commit."""
        first = _with(self.state, a=("first",), b=("first",))
        yield Step(
            "publish to both",
            lambda: self._confirmed("events", "k.1", b"first"),
            first,
            (_with(self.state, a=("first",)), _with(self.state, b=("first",))),
        )
        for number, body in enumerate(INPUTS):
            yield Step(
                f"publish {body}",
                lambda body=body: self._confirmed("", "in", body.encode()),  # type: ignore[misc]
                _with(self.state, **{"in": INPUTS[: number + 1]}),
            )
        yield Step("get", self._get_inputs, self.state)
        committed = _with(
            self.state,
            **{"in": ("again",), "letters": ("bad",), "a": ("first", "both", "alone"), "b": ("both", "first")},
        )
        # A dead letter comes at least once.
        twice = _with(committed, letters=("bad", "bad"))
        yield Step("commit", self._commit, committed, (twice,), may_come_twice=True)
        yield Step("acknowledge", self._acknowledge, _with(self.state, **{"in": ()}), may_be_lost=True)

    def _confirmed(self, exchange: str, key: str, body: bytes) -> None:
        self.client.expect("basic.ack", "basic.nack")
        self.client.publish(2, exchange, key, body, {"delivery_mode": 2})
        [answer] = self.client.hear()
        if answer.name != "basic.ack":
            raise UnexpectedAnswerError(answer.name)

    def _get_inputs(self) -> None:
        for _ in INPUTS:
            got = self.client.call(3, "basic.get", queue="in")
            self._got[got.body.decode()] = got
        # Until it is durable that they were delivered.
        turn(self.node, self.client, START + 2)

    def _commit(self) -> None:
        client = self.client
        client.publish(3, "events", "k.2", b"both", {"delivery_mode": 2, "priority": 2})
        client.publish(3, "", "a", b"alone")
        client.tell(3, "basic.ack", delivery_tag=self._got["done"].tag)
        client.tell(3, "basic.reject", delivery_tag=self._got["bad"].tag, requeue=False)
        client.tell(3, "basic.nack", delivery_tag=self._got["again"].tag, requeue=True)
        client.call(3, "tx.commit")

    def _acknowledge(self) -> None:
        got = self.client.call(1, "basic.get", queue="in")
        self.client.tell(1, "basic.ack", delivery_tag=got.tag)
        self.client.hear()

    def ending(self) -> Iterator[Step]:
        """It is all taken down again."""
        call = self.client.call
        gone = ("b", "events", "k.*")
        yield Step(
            "unbind",
            lambda: _ignore(call(1, "queue.unbind", queue=gone[0], exchange=gone[1], routing_key=gone[2])),
            self.state._replace(bindings=self.state.bindings - {gone}),
        )
        yield Step("purge", lambda: _ignore(call(1, "queue.purge", queue="b")), _with(self.state, b=()))
        queues = {name: held for name, held in self.state.queues.items() if name != "a"}
        yield Step(
            "delete a queue",
            lambda: _ignore(call(1, "queue.delete", queue="a")),
            self.state._replace(queues=queues, bindings=frozenset(b for b in self.state.bindings if b[0] != "a")),
        )
        yield Step(
            "delete an exchange",
            lambda: _ignore(call(1, "exchange.delete", exchange="dead")),
            self.state._replace(
                exchanges=self.state.exchanges - {"dead"},
                bindings=frozenset(b for b in self.state.bindings if b[1] != "dead"),
            ),
        )

    # -- judging ---------------------------------------------------------------------------------------------------

    def complaints(self, found: Found) -> Iterator[str]:
        """What is wrong with what a start found after a power loss now."""
        yield from found.problems
        allowed = self.allowed()
        if found.state not in allowed:
            step = self.step.name if self.step is not None else "the end"
            nearest = "\n".join(f"  {state}" for state in allowed)
            yield f"in {step}: found\n  {found.state}\nexpected one of\n{nearest}"
        unmarked = [body for body in found.unmarked if body in self._got and self.step_is_past("get")]
        if unmarked:
            yield f"delivered again without a mark: {unmarked}"

    def step_is_past(self, name: str) -> bool:
        """Whether a step was done."""
        return bool(self._got) and (self.step is None or self.step.name != name)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a start found."""

    state: State
    unmarked: tuple[str, ...]
    """Bodies of messages in ``in`` that are not marked as redelivered."""
    problems: tuple[str, ...]


def declare_exchange(client: InMemoryClient, name: str, kind: str) -> Arrival:
    return client.call(1, "exchange.declare", exchange=name, type_=kind, durable=True)


def declare_queue(client: InMemoryClient, name: str) -> None:
    client.call(1, "queue.declare", queue=name, durable=True, arguments=QUEUES[name])


def bind(client: InMemoryClient, binding: tuple[str, str, str]) -> None:
    queue, exchange, key = binding
    client.call(1, "queue.bind", queue=queue, exchange=exchange, routing_key=key)


def examine(disk: Disk, durability: Durability, *, thoroughly: bool = True) -> Found:
    """Start a broker, look, and ``thoroughly`` start it again and find the same, and use it."""
    problems: list[str] = []
    first, unmarked = _look(open_node(disk, durability), problems)
    if not thoroughly:
        return Found(state=first, unmarked=tuple(unmarked), problems=tuple(problems))
    disk.unlock()
    node = open_node(disk, durability)
    again, _ = _look(node, problems)
    if again != first:
        problems.append(f"opened again, it holds {again}, and before {first}")
    _use(node, problems)
    node.close(START + 5)
    return Found(state=first, unmarked=tuple(unmarked), problems=tuple(problems))


def _look(node: BrokerNode, problems: list[str]) -> tuple[State, list[str]]:
    turn(node, None)
    client = InMemoryClient(node, lambda client: turn(node, client), START)
    exchanges = frozenset(name for name in EXCHANGES if client.declared("exchange", name))
    problems += [f"the queue {queue} came back" for queue in PASSING if client.declared("queue", queue)]
    if client.declared("exchange", "transient"):
        problems.append("the transient exchange came back")
    queues: dict[str, tuple[str, ...]] = {}
    unmarked: list[str] = []
    client.call(1, "channel.open")
    for queue in QUEUES:
        if not client.declared("queue", queue):
            continue
        held = []
        while (got := client.call(1, "basic.get", queue=queue)).name == "basic.get-ok":
            held.append(got.body.decode())
            if queue == "in" and not got["redelivered"]:
                unmarked.append(held[-1])
        queues[queue] = tuple(held)
    bindings = frozenset(_bindings(node))
    client.lose()
    return State(exchanges, queues, bindings), unmarked


def _bindings(node: BrokerNode) -> Iterator[tuple[str, str, str]]:
    """From inside: over the wire a binding shows in where messages go alone."""
    vhost = node.amqp091.topology.vhost("/")
    for name in EXCHANGES:
        exchange = vhost.exchanges.get(name)
        for binding in () if exchange is None else exchange.bindings.values():
            yield binding.destination.name, name, binding.routing_key


def _use(node: BrokerNode, problems: list[str]) -> None:
    """Declare all of it again in the same words, and send something through it."""
    try:
        client = InMemoryClient(node, lambda client: turn(node, client), START + 3)
        client.call(1, "channel.open")
        for name, kind in EXCHANGES.items():
            declare_exchange(client, name, kind)
        for name in QUEUES:
            declare_queue(client, name)
        for binding in BINDINGS:
            bind(client, binding)
        for queue in QUEUES:
            client.call(1, "queue.purge", queue=queue)
        client.call(2, "channel.open")
        client.call(2, "tx.select")
        client.publish(2, "events", "k.9", b"anew")
        client.publish(2, "", "in", b"anew")
        client.call(2, "tx.commit")
        for queue in ("a", "b", "in"):
            got = client.call(1, "basic.get", queue=queue)
            if got.body != b"anew":
                problems.append(f"{queue} gets {got.name} {got.body!r} in place of a new message")
        client.tell(1, "basic.reject", delivery_tag=3, requeue=False)
        client.hear()
        turn(node, client, START + 4)
        if client.call(1, "basic.get", queue="letters").body != b"anew":
            problems.append("what is rejected does not go to the exchange for dead letters")
    except UnexpectedAnswerError as error:
        problems.append(f"what was declared cannot be used: {error}")


def _with(state: State, **queues: tuple[str, ...]) -> State:
    return state._replace(queues={**state.queues, **queues})


def _ignore(_answer: Arrival) -> None: ...


def all_steps(life: AmqpLife) -> Iterator[Step]:
    """From the first declaration to the last deletion."""
    return itertools.chain(life.building(), life.working(), life.ending())
