"""A consumer group: where it stands in each partition, its members and their assignment; and what a queue holds.

Knows ``partitions`` and below.

Groups. A join or leave only asks for a rebalance (``queues.groups.rebalance``); the next turn assigns for the members
there are by then (``queues.groups.assignment``: pure functions). Cooperative: a partition with unsettled deliveries
becomes a ``Move``, which nobody is served until the last of them is let go or its deadline passes.
``queues.groups.membership`` has what concerns members alone: heartbeats, generations, automatic commits.
``engine.groups`` (``GroupOperations``) is the interface to commits (``cursors``), resets, claims (``claims``) and
figures; ``mqtt.sessions.queue_consumers`` joins sessions to groups and remembers what they asked for.
"""
