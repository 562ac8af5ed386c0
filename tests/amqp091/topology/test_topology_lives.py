"""Random lives of a virtual host, restarts among them, beside the plain model of what it should do."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from assay.reference_broker.amqp091.topology import Arguments, QueueRecord, Topology, VirtualHost
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.properties import Kind, Typed
from tests.amqp091.topology.topology_model import ModelBinding, ModelExchange, ModelHost, ModelQueue, plain

STEPS = 300
VHOST = "orders/eu"
EXCHANGES = ("e1", "e2", "e3", "e4", "amq.topic", "amq.direct", "amq.fanout", "amq.match")
QUEUES = ("q1", "q2", "q3", "a", "a.b")
WORDS = ("a", "b", "", "*", "#")


class Life:
    """One virtual host and its model. The log is a dict, as the store of the broker gives it back."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.model = ModelHost()
        self.topology = Topology()
        self.log: dict[bytes, bytes] = {}
        self.refused = self.restarts = self.routed = 0

    @property
    def vhost(self) -> VirtualHost:
        return self.topology.vhost(VHOST)

    def outcome(self, act: Callable[[], object]) -> int | None:
        try:
            act()
        except AmqpError as error:
            self.refused += 1
            return error.code
        return None

    # -- what is drawn -----------------------------------------------------------------------------------------------

    def key(self, *, is_pattern: bool) -> str:
        if not is_pattern and self.model.bindings and self.rng.random() < 0.5:
            # One that a pattern may take.
            pattern = self.rng.choice(self.model.bindings)[3]
            return ".".join([self.rng.choice("ab") if each in ("*", "#") else each for each in pattern.split(".")])
        words = WORDS if is_pattern else WORDS[:3]
        return ".".join(self.rng.choices(words, k=self.rng.randint(0, 4)))

    def value(self) -> Typed:
        number = self.rng.randint(1, 2)
        return self.rng.choice(
            [Typed(Kind.I32, number), Typed(Kind.I64, number), Typed(Kind.TEXT, str(number)), Typed(Kind.NULL, None)]
        )

    def headers(self, most: int) -> Arguments:
        names = self.rng.sample(("k", "l", "x-m"), k=self.rng.randint(0, most))
        return tuple([(name, self.value()) for name in names])

    def arguments(self) -> Arguments:
        if self.rng.random() < 0.4:
            return ()
        found = self.headers(2)
        if self.rng.random() < 0.8:
            match = self.rng.choice(("all", "any", "all-with-x", "any-with-x", "none"))
            found += (("x-match", Typed(Kind.TEXT, match) if self.rng.random() < 0.95 else Typed(Kind.BOOL, True)),)
        return found

    def exchange(self) -> str:
        return self.rng.choice((*EXCHANGES, "e1", "e2", "e3", "e4", "", "amq.other", "gone"))

    def binding(self) -> tuple[ModelBinding, Arguments]:
        if self.model.bindings and self.rng.random() < 0.3:
            # One that is there, by values of another width.
            binding = self.rng.choice(self.model.bindings)
            wide = {"integer": Kind.I64}
            arguments = tuple([(name, Typed(wide.get(kind) or Kind(kind), each)) for name, (kind, each) in binding[4]])  # type: ignore[misc]
            return binding, arguments
        arguments = self.arguments()
        to_queue = self.rng.random() < 0.6
        destination = self.rng.choice((*QUEUES, "gone")) if to_queue else self.exchange()
        key = self.key(is_pattern=True)
        return (self.exchange(), "queue" if to_queue else "exchange", destination, key, plain(arguments)), arguments

    # -- what is done ------------------------------------------------------------------------------------------------

    def declare_exchange(self) -> None:
        rng, name = self.rng, self.exchange()
        kind = rng.choice(("direct", "fanout", "topic", "headers") * 4 + ("x-none",))
        alternate = rng.choice((None, None, "", *EXCHANGES))
        wanted = ModelExchange(kind, rng.random() < 0.5, rng.random() < 0.4, rng.random() < 0.2, alternate=alternate)
        there = self.model.exchanges.get(name)
        if there is not None and rng.random() < 0.7:
            wanted = ModelExchange(there.kind, there.durable, there.auto_delete, there.internal, there.alternate)
        arguments = () if wanted.alternate is None else (("alternate-exchange", Typed(Kind.TEXT, wanted.alternate)),)
        passive = rng.random() < 0.1
        assert self.model.declare_exchange(name, wanted, passive=passive) == self.outcome(
            lambda: self.vhost.declare_exchange(
                name,
                wanted.kind,
                passive=passive,
                durable=wanted.durable,
                auto_delete=wanted.auto_delete,
                internal=wanted.internal,
                arguments=(*arguments, ("unknown", Typed(Kind.BOOL, passive))),
            )
        )

    def delete_exchange(self) -> None:
        name, if_unused = self.exchange(), self.rng.random() < 0.4
        assert self.model.delete_exchange(name, if_unused=if_unused) == self.outcome(
            lambda: self.vhost.delete_exchange(name, if_unused=if_unused)
        )

    def declare_queue(self) -> None:
        rng, name = self.rng, self.rng.choice((*QUEUES, *QUEUES, "amq.q"))
        owner = rng.randint(1, 2)
        is_exclusive = rng.random() < 0.3
        wanted = ModelQueue(
            rng.random() < 0.5 and not is_exclusive,
            owner if is_exclusive else None,
            rng.random() < 0.2,
            self.headers(1),
        )
        there = self.model.queues.get(name)
        if there is not None and rng.random() < 0.6:
            wanted = there
        passive = rng.random() < 0.1

        def declare() -> None:
            found = self.vhost.check_queue(
                name,
                owner=owner,
                passive=passive,
                durable=wanted.durable,
                exclusive=wanted.owner is not None,
                auto_delete=wanted.auto_delete,
                arguments=wanted.arguments,
            )
            if found is None:
                record = QueueRecord(
                    name=name,
                    durable=wanted.durable,
                    exclusive_owner=wanted.owner,
                    auto_delete=wanted.auto_delete,
                    arguments=wanted.arguments,
                )
                self.vhost.add_queue(record)

        assert self.model.declare_queue(name, wanted, owner, passive=passive) == self.outcome(declare)

    def remove_queue(self) -> None:
        name = self.rng.choice(QUEUES)
        self.model.remove_queue(name)
        self.vhost.remove_queue(name)

    def end_connection(self) -> None:
        owner = self.rng.randint(1, 2)
        owned = [name for name, each in self.model.queues.items() if each.owner == owner]
        assert list(self.vhost.queues_of(owner)) == owned
        for name in owned:
            self.model.remove_queue(name)
            self.vhost.remove_queue(name)

    def bind(self) -> None:
        binding, arguments = self.binding()
        source, kind, destination, key, _ = binding
        owner = self.rng.randint(1, 2)
        before = len(self.model.bindings)
        expected, new = self.model.bind(binding, owner), []
        if kind == "queue":
            got = self.outcome(
                lambda: new.append(self.vhost.bind_queue(destination, source, key, arguments, owner=owner))
            )
        else:
            got = self.outcome(lambda: new.append(self.vhost.bind_exchange(destination, source, key, arguments)))
        assert got == expected
        assert new == ([] if got else [len(self.model.bindings) > before])

    def unbind(self) -> None:
        binding, arguments = self.binding()
        source, kind, destination, key, _ = binding
        owner = self.rng.randint(1, 2)
        exchanges, bindings = set(self.model.exchanges), list(self.model.bindings)
        expected, gone = self.model.unbind(binding, owner), []
        if kind == "queue":
            got = self.outcome(
                lambda: gone.append(self.vhost.unbind_queue(destination, source, key, arguments, owner=owner))
            )
        else:
            got = self.outcome(lambda: gone.append(self.vhost.unbind_exchange(destination, source, key, arguments)))
        assert got == expected
        if not got:
            assert set(gone[0].exchanges) == exchanges - set(self.model.exchanges)
            assert len(gone[0].bindings) == len(bindings) - len(self.model.bindings)

    def write(self) -> None:
        """The end of a turn."""
        for key, value in self.topology.take_changes():
            if value is None:
                del self.log[key]  # It was there: what was never written is not deleted.
            else:
                self.log.pop(key, None)
                self.log[key] = value

    def restart(self) -> None:
        self.write()
        self.restarts += 1
        self.topology = Topology()
        self.topology.restore(self.log, pytest.fail)
        self.model.restart()
        self.write()

    # -- what is compared --------------------------------------------------------------------------------------------

    def compare(self) -> None:
        model, vhost = self.model, self.vhost
        assert {name for name in vhost.exchanges if name} == set(model.exchanges)
        assert set(vhost.queues) == set(model.queues)
        bindings = {
            (each.source, each.destination.kind.value, each.destination.name, each.routing_key, plain(each.arguments))
            for each in vhost.list_bindings()
            if each.source
        }
        assert bindings == set(model.bindings)
        for _ in range(4):
            self.compare_a_route()

    def compare_a_route(self) -> None:
        exchange, key, headers = self.exchange(), self.key(is_pattern=False), self.headers(3)
        if self.model.bindings and self.rng.random() < 0.6:
            exchange = self.rng.choice(self.model.bindings)[0]
        keys = [key]
        for name in ("CC", "BCC"):
            if self.rng.random() < 0.1:
                more = [self.key(is_pattern=False) for _ in range(self.rng.randint(0, 2))]
                keys += more
                headers += ((name, Typed(Kind.LIST, tuple([Typed(Kind.TEXT, each) for each in more]))),)
        there = self.model.exchanges.get(exchange)
        expected = self.model.route(exchange, keys, headers)
        assert list(self.vhost.route_dead_letter(exchange, key, headers).queues) == expected
        found: list[list[str]] = []
        code = self.outcome(lambda: found.append(list(self.vhost.route(exchange, key, headers).queues)))
        if exchange and there is None:
            assert code == 404
        elif there is not None and there.internal:
            assert code == 403
        else:
            assert (code, found) == (None, [expected])
        self.routed += len(expected)

    def live(self) -> None:
        acts = (
            [self.declare_exchange] * 5
            + [self.declare_queue] * 5
            + [self.bind] * 12
            + [self.bind] * 8
            + [self.unbind, self.unbind, self.delete_exchange, self.remove_queue, self.end_connection, self.restart]
        )
        for _ in range(STEPS):
            self.rng.choice(acts)()
            self.compare()
            if self.rng.random() < 0.3:
                self.write()


@pytest.mark.parametrize("seed", range(25))
def test_a_life_is_that_of_the_model(seed: int) -> None:
    life = Life(seed)
    life.live()
    assert life.restarts
    assert life.refused > 10
    assert life.routed > 10
