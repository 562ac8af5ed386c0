"""``assay storage``: shows, checks, prints, repairs, imports and exports data directories of three brokers.

Foreign files (``storage_tools.foreign``): GoQueue's messages, segment folders and small files both ways; FluxMQ's
configuration, group and consumer files for reading. A walk yields sound messages and damage, like ``segment_scan``. Our
log numbers records itself.

Tools (``storage_tools``, ``assay storage``) read all formats as one: chunks (batches or messages) and damage. Findings
are data; tables, JSON and the repair plan come from the same structs. Three sources tell a torn write from damage: the
durable mark, the index a segment ought to have, and what an unfinished write looks like. ``layout`` names every log:
those of delayed messages count as partitions -1 and -2 of their queue, those of sessions and transactions as queues of
their own.
"""
