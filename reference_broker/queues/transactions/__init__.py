"""Producers with numbers, and transactions over several queues.

Knows ``queue`` and below.

Transactions (``queues.transactions.transactions``). A producer's message goes through ``Transactions.publish``, which
numbers it and notes its offset in the partition's ``PartitionProducers``; everything else pays one test for None.
Consumers read up to ``visible_end``, which stays in front of the first open transaction. A commit (``commit_phases``)
waits for the syncs of all it wrote, then for that of one decision in the coordinator's log (``coordinator``, over
``storage.state_log``), and only then tells the parts; an abort is what no decision means. Aborted messages and control
records become ``HIDDEN``, which has always expired, and are counted out at once. A start reads a snapshot per partition
and the end of its log, or all of a log that ends before its snapshot (``transaction_recovery``). Deliveries
acknowledged in a transaction are ``COMMITTING`` until its end; a decision names each by its time too, so that a start
settles none that came anew. One that is rejected in it goes to the dead letters once it is committed, and the decision
stays until it is there. Who produces (``producer_names``) is told by ids that belong to a user;
``mqtt.sessions.transaction_requests`` holds each message against that, where any id is somebody's.
"""
