"""Slips in the broker's AMQP 0.9.1 where two states meet, each a few words of one function: for lives to find."""

from __future__ import annotations

from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091 import dead_letters, declarations, queue_settings
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.dead_letters import DeadLetterExchange
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import routes
from assay.reference_broker.amqp091.topology.tables import DirectTable, HeadersTable, TopicTable
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost
from assay.reference_broker.queues.queue import enqueue_path
from assay.reference_broker.queues.registry.registry import QueueRegistry

_ROWS: dict[str, Row] = {
    # Routing
    "amqp-unbinding-takes-longer-patterns-along": (
        "a topic pattern that is unbound takes along those that begin with it",
        TopicTable,
        "remove",
        "while way and not node.children and not node.ends.counts:",
        "while way and not node.ends.counts:",
    ),
    "amqp-all-headers-is-the-first": (
        "x-match all looks at the first field alone",
        HeadersTable,
        "find",
        "have.issuperset(pattern.wants)",
        "have.issuperset(pattern.wants[:1])",
    ),
    "amqp-direct-unbound-with-its-neighbours": (
        "of two queues bound by one key the unbinding of one leaves none",
        DirectTable,
        "remove",
        "if not ends.counts:",
        "if True:",
    ),
    "amqp-alternate-gets-all": (
        "the alternate exchange gets what was routed as well",
        routes,
        "find_route",
        "if not found and exchange.alternate is not None:",
        (
            "if found and exchange.alternate is not None:\n"
            "            found = (*found, Destination(DestinationKind.EXCHANGE, exchange.alternate))\n"
            "        elif exchange.alternate is not None:"
        ),
    ),
    "amqp-routes-remembered-by-the-last-exchange": (
        "whether a key counts for a route that is remembered is what the last exchange on the way says",
        routes,
        "find_route",
        "looks_at_key = looks_at_key or table.looks_at_key",
        "looks_at_key = table.looks_at_key",
    ),
    "amqp-blind-copies-lead-nowhere": (
        "the keys of BCC count only if there is no CC",
        routes,
        "routing_keys_of",
        "for name in (CC, BCC):\n        given",
        "for name in (CC,) if CC in fields else (CC, BCC):\n        given",
    ),
    "amqp-unbound-is-remembered": (
        "a route that is remembered outlives its binding",
        VirtualHost,
        "unlink",
        "self._bytes -= binding.size_bytes\n    source.forget_routes()",
        "self._bytes -= binding.size_bytes",
    ),
    # Restarts
    "amqp-unbound-is-back-after-a-restart": (
        "a binding that was not the last one of its exchange is unbound, and there again after a restart",
        VirtualHost,
        "unlink",
        "if binding.number:",
        "if binding.number and not source.bindings:",
    ),
    "amqp-bindings-to-exchanges-are-not-written": (
        "a binding to an exchange is not there after a restart",
        VirtualHost,
        "bind",
        "if source.durable and self.is_durable(destination):",
        "if source.durable and self.is_durable(destination) and destination.kind is DestinationKind.QUEUE:",
    ),
    # Dead letters
    "amqp-deaths-counted-once": (
        "a message that dies again in the same way is counted as if it were the first time",
        dead_letters,
        "with_death",
        "count += before.value if before is not None and isinstance(before.value, int) else 1",
        "count += 0",
    ),
    "amqp-letters-keep-their-expiration": (
        "a dead letter keeps the expiration that it had",
        DeadLetterExchange,
        "enqueue_dead_letter",
        "        ttl_ms=None,\n",
        "",
    ),
    "amqp-letters-keep-their-key-at-named-exchanges": (
        "the dead letters' routing key counts for the default exchange alone",
        DeadLetterExchange,
        "enqueue_dead_letter",
        "if self._routing_key is not None:",
        "if self._routing_key is not None and not self._exchange:",
    ),
    "amqp-rejected-letters-circle-no-more": (
        "a rejected message does not come to a queue where it died before",
        dead_letters,
        "is_cycle",
        'return all(d["reason"].value != REJECTED for d in deaths[: number + 1])',
        "return True",
    ),
    # Publishing
    "amqp-refusals-confirmed-in-a-row": (
        "what a queue refuses is confirmed, if what was published before has been confirmed",
        Publishing,
        "flush",
        "if first == self._floor and not failed:",
        "if first == self._floor and (not failed or since):",
    ),
    "amqp-returns-without-properties": (
        "what comes back has no properties",
        Publishing,
        "return_unrouted",
        "header_of(len(body), properties, connection.frame_max_bytes)",
        "header_of(len(body), BasicProperties(), connection.frame_max_bytes)",
    ),
    "amqp-rollback-forgets-what-is-held": (
        "after a rollback nothing can be acknowledged but what was acknowledged within it",
        Consuming,
        "take_back",
        "{**self._unsettled, **back}",
        "back or self._unsettled",
    ),
    # Consuming
    "amqp-recover-leaves-gets-out": (
        "recover does not return what came by Get",
        Consuming,
        "recover_async",
        "self._settle_for_good(",
        "taken = [each for each in taken if each[1].consumer.tag]\n    self._settle_for_good(",
    ),
    "amqp-gets-are-all-like-the-first": (
        "a second Get from a queue needs an acknowledgement if the first did, whatever it says",
        Consuming,
        "get",
        "getter.no_ack = no_ack",
        "pass",
    ),
    "amqp-acknowledged-to-zero-but-for-the-last": (
        "multiple with tag 0 leaves the last delivery of several out",
        Consuming,
        "taken",
        "taken = list(unsettled.items())\n        unsettled.clear()",
        (
            "taken = list(unsettled.items())\n"
            "        taken = taken[:-1] or taken\n"
            "        for each, _ in taken:\n"
            "            del unsettled[each]"
        ),
    ),
    "amqp-exclusive-for-ever": (
        "a queue stays closed to others behind its exclusive consumer",
        Amqp091,
        "left",
        "use.is_exclusive = False",
        "pass",
    ),
    "amqp-auto-delete-with-any-consumer": (
        "an auto-delete queue goes with any of its consumers",
        Amqp091,
        "left",
        "if record.auto_delete and not use.consumers:",
        "if record.auto_delete:",
    ),
    "amqp-single-active-stays-empty": (
        "where a single consumer is active, the second one takes over, and the third does not",
        Amqp091,
        "left",
        "if use.arguments.is_single_active and was_first and use.consumers:",
        "if use.arguments.is_single_active and was_first and len(use.consumers) > 1:",
    ),
    # Declarations
    "amqp-redeclared-queues-lose-arguments": (
        "a queue may be declared again as transient",
        VirtualHost,
        "check_queue",
        '("durable", queue.durable, durable and not exclusive),',
        '("durable", queue.durable, durable or queue.durable),',
    ),
    "amqp-used-queues-deleted-if-empty": (
        "if-unused does not count where if-empty is set, too",
        declarations,
        "queue_delete",
        "if if_unused and service.consumer_count(vhost, name):",
        "if if_unused and not if_empty and service.consumer_count(vhost, name):",
    ),
    "amqp-one-delivery-too-many": (
        "a delivery limit lets one delivery more through",
        queue_settings,
        "settings_of",
        "UNLIMITED_RETRIES if limit is None else limit",
        "UNLIMITED_RETRIES if limit is None else limit + 1",
    ),
    "amqp-high-priorities-wrap": (
        "a priority above the maximum counts as none",
        enqueue_path,
        "lane_of_exact",
        "min(level, config.levels - 1)",
        "(level if level < config.levels else 0)",
    ),
    # What is held
    "amqp-deleted-queues-keep-what-they-knew": (
        "what a queue remembers of how to store messages is not let go of when it is deleted",
        QueueRegistry,
        "delete",
        "    queue.forget_known()\n",
        "",
    ),
}


register_rewrites(_ROWS)
