"""Bugs of the broker's AMQP 0.9.1 where two features meet, each a few words of one function, for cases to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091 import dead_letters, declarations, queue_settings
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.dead_letters import DeadLetterExchange
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import routes
from assay.reference_broker.amqp091.topology.tables import HeadersTable
from assay.reference_broker.amqp091.topology.virtual_host import Removed, VirtualHost
from assay.reference_broker.amqp091.transactions import Commit
from assay.reference_broker.queues.operations.purge import Purge

_ROWS: dict[str, Row] = {
    "amqp-alternate-of-the-first-alone": (
        "behind a binding an alternate exchange counts for nothing",
        routes,
        "find_route",
        "if not found and exchange.alternate is not None:",
        "if not found and exchange.alternate is not None and exchange is entry:",
    ),
    "amqp-auto-delete-chains-end-early": (
        "an auto-delete exchange stays when its last binding goes with another exchange",
        VirtualHost,
        "remove_bindings",
        "waiting = tuple(self._bindings_to.get(exchange.destination, ()))",
        "waiting = ()",
    ),
    "amqp-commit-of-one-publish-reaches-one-queue": (
        "a transaction with a single publish brings that to one queue, however many it leads to",
        Commit,
        "begin",
        "elif self._transaction.count == 1:",
        "elif len(routed) + len(settlements) == 1:",
    ),
    "amqp-deaths-count-by-queue": (
        "x-death has one entry for a queue, with its latest reason",
        dead_letters,
        "with_death",
        """if d["queue"].value == queue and d["reason"].value == reason)""",
        """if d["queue"].value == queue)""",
    ),
    "amqp-first-death-is-the-last": (
        "x-first-death-reason tells why a message died last",
        dead_letters,
        "with_death",
        """named.setdefault("x-first-death-reason", _text(reason))""",
        """named["x-first-death-reason"] = _text(reason)""",
    ),
    "amqp-first-death-queue-is-its-exchange": (
        "x-first-death-queue names the exchange of the message",
        dead_letters,
        "with_death",
        """named.setdefault("x-first-death-queue", _text(queue))""",
        """named.setdefault("x-first-death-queue", _text(exchange))""",
    ),
    "amqp-rejected-letters-do-not-come-back": (
        "a message that is rejected is dropped where its queue is its own dead letter queue",
        dead_letters,
        "is_cycle",
        "deaths[: number + 1]",
        "deaths[:number]",
    ),
    "amqp-deaths-tell-one-key": (
        "x-death does not tell the routing keys of CC",
        DeadLetterExchange,
        "enqueue_dead_letter",
        "keys = list(routing_keys_of(key, kept.headers, _MAX_KEYS))",
        "keys = [key]",
    ),
    "amqp-purge-ok-tells-one-too-few": (
        "of several messages that are purged Purge-Ok counts one too few",
        declarations,
        "queue_purge",
        """answer("queue.purge-ok", found)""",
        """answer("queue.purge-ok", found - (found > 1))""",
    ),
    "amqp-unbound-from-everything-stays": (
        "a binding without arguments to a headers exchange counts after it was unbound",
        HeadersTable,
        "remove",
        "self._always.pop(binding, None)",
        "pass",
    ),
    "amqp-unbound-from-any-stays": (
        "a binding of any of several fields counts for the others after it was unbound",
        HeadersTable,
        "remove",
        "_, places = self._patterns.pop(binding)",
        "_, places = self._patterns[binding][0], self._patterns[binding][1][:1]",
    ),
    "amqp-purge-ok-leaves-out-what-came-back": (
        "Purge-Ok does not count what came back from a consumer",
        Purge,
        "pass_time",
        "self._count += before - queue.contents.depth",
        "pass",
    ),
    "amqp-declarations-are-no-use": (
        "a queue expires although it is declared again",
        Amqp091,
        "declare",
        "if use is not None:\n            self._touch(vhost, found, use, now)",
        "pass",
    ),
    "amqp-confirmed-by-two-queues": (
        "a publish is confirmed for what two of its queues say, however many it has",
        Publishing,
        "decided",
        "if not run.first_tag or not run.messages:\n        return",
        (
            "if not run.first_tag or not run.messages:\n        return\n"
            "    run.failed -= {at for queues, some in run.by_route.items() if len(queues) > 2 for at in some}"
        ),
    ),
    "amqp-nacks-name-others": (
        "of publishes that came together others are refused than the queue did not take",
        Publishing,
        "decided",
        "tag = first + position",
        "tag = first + len(run.messages) - 1 - position",
    ),
    "amqp-gets-are-no-use": (
        "a queue expires although it is asked for messages",
        Consuming,
        "get",
        "service.touch(vhost, record, now)",
        "pass",
    ),
    "amqp-letters-keep-their-copies": (
        "a dead letter goes to where CC led, too, although its queue names a routing key for it",
        DeadLetterExchange,
        "enqueue_dead_letter",
        'headers = tuple([field for field in headers if field[0] != "CC"])',
        "pass",
    ),
    "amqp-one-limit-on-length-holds": (
        "a limit on the bytes of a queue counts for nothing where there is one on its messages",
        queue_settings,
        "settings_of",
        "if arguments.max_length_bytes is not None:",
        "if arguments.max_length_bytes is not None and arguments.max_length is None:",
    ),
}
register_rewrites(_ROWS)


@mutant("amqp-unbinding-takes-the-key-along", "with one binding of a queue those of other queues by its key go")
def unbinding_takes_the_key_along(patch: Patch) -> None:
    def make(original: Callable[..., Removed]) -> Callable[..., Removed]:
        def unbind(self: VirtualHost, queue: str, exchange: str, routing_key: str, *rest: Any, **more: Any) -> Removed:
            removed, source = original(self, queue, exchange, routing_key, *rest, **more), self.exchanges[exchange]
            for each in [each for each in source.bindings.values() if each.routing_key == routing_key]:
                self.unlink(each, source)
            return removed

        return unbind

    patch.wrap(VirtualHost, "unbind_queue", make)
