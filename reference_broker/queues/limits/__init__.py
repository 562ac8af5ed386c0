"""Depth, bytes, time to live and retention of one queue.

Knows ``dead_letters``, ``groups`` and below.

Priority and limits. ``queues.messages.lanes`` lists the offsets that are not of normal priority; each lane of a
partition is a ``GroupPartition`` of its own, with a number of its own in the group log, so cursors, retries and
recovery are those of any partition. ``GroupPartition.lanes`` is None until the first such message, and so is
``ConsumerGroup.scheduler``, which hands out turns. The lane is a header of the record; that a queue has lanes, or
messages with a time to live of their own, is a fact in ``queue.json``, and only then opening looks through the log.
``queues.limits.limits`` and ``.time_to_live`` take messages out that nobody was given: those at a cursor by moving it,
those behind a live one by marking them as gone (``queues.partitions.expiry``), since a cursor cannot pass what lives.
It is woken when the next one expires. What no group's log remembers of this, ``queues.partitions.departures`` does: a
start brings back nothing that left. ``queues.registry.memory_limit`` counts what queues in memory hold;
``mqtt.connections.inbound`` stops reading from their publishers.
"""
