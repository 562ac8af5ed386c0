"""All queues: how they come, are opened, and go; what they may hold in memory together.

Knows ``queue`` and below.

Queues that come, change and go (``queues.registry.registry``). A queue's configuration is merged from profile,
``defaults``, ``templates``, its entry in the file, and what was set at run time, which ``queue.json`` holds: the later
wins. ``queues.admin.admin`` is the table of operations; ``mqtt.sessions.queue_admin`` knows who may, answers, and
streams figures. *Bindings* (``queues.queue.bindings``) are a tree of filters that never changes; other filters are
another tree. ``QueueAddress.bound`` names further queues that get a message; ``QueueEngine.bound_to`` finds them, and
whoever reads topics remembers them until ``QueueEngine.version`` grows. For ordinary topics ``engine.captures`` is None
until some queue wants any; a change invalidates the plans of ``mqtt.connections.inbound``, which never forwards as a
slice what a queue captures. A copy waits for no sync, and how many may wait is bounded. *Deleting*
(``queues.registry.removal``): the queue's parts are handed an agenda that nobody looks at, whoever waits gets an error,
and when no sync is running in its logs they are closed and a job removes the files, after a durable mark in
``queue.json`` and before the mark itself; an opening finishes what a crash interrupted. Until then the name is not
free. *Purging* (``queues.operations.purge``) syncs first and remembers an offset per partition, since only offsets that
cannot be lost may be remembered.
"""
