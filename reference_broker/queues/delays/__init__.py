"""Messages that wait for their time, in a log of their own.

Knows ``partitions`` and below, and the figures of ``groups``.

A *delayed* message (``queues.delays.delay_store``) waits in a log of its own, and its offset in a ``timing_wheel`` of
16 bytes a timer. When it is due it is published like any other; once its partition has it durably, its offset goes to
the ``done_log``. Before the partitions get what fires in a turn, the done log notes where they end: a start looks
behind that for what fired, by a header that names the offset, so that kill -9 fires nothing twice. A power loss may,
and neither loses any. Every few thousand messages the done log is also told which wait, and when they are due, so that
a start reads a million in half a second. All it says is absolute and may be stated anew, piece by piece, and cut at
will; a rewind record guards offsets that power loss lets be given out again. ``storage.sparse_log`` copies segments in
which little still waits without the rest, as a job beside the syncs, so that one long delay keeps nothing else on disk.
"""
