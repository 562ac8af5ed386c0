"""Who gets which message next, and what consumers say of it: dispatch, settlements, claims.

Knows ``groups`` and below.

Settlements and dead letters. ``queues.delivery.settle_request`` reads what consumers write;
``queues.delivery.settlement`` finds all that is named before it changes anything. Deadlines that consumers extended
wait in a heap beside the queue of ordinary ones. Without an order to keep, ``queues.delivery.fair_turns`` says who gets
the next message. A message that becomes a dead letter, and a dead letter that goes back (``queues.operations.replay``),
is an entry in state ``DEAD_LETTERING`` until the other queue has it durably, so a crash repeats and never loses. A
replay works in portions that the agenda wakes; where a dead-letter queue has no group yet, ``$mark`` remembers what is
gone until one joins. ``queues.jobs.outbox`` decides when what is posted to web hooks is posted again;
``server.webhooks`` does it, and guards it.
"""
