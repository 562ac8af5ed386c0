"""Durable storage behind the Disk interface: batches, segments, partition logs, pending-entry logs.

::

    sessions/<20 digits>.seg ...                      sessions and retained messages, one record per key; compacted
    queues/<queue>/queue.json                         name, partitions, settings, purged offsets; <queue> by file_names
    queues/<queue>/partitions/<id>/<20 digits>.seg    batches end to end, named by the first offset      FluxMQ's bytes
                                   <20 digits>.idx    offset -> position, sparse; .tix: time -> offset    FluxMQ's bytes
                                   durable.mark       how far the log is known to be on disk
                                   cleaner.json       how far it has been compacted
    queues/<queue>/delays/                            messages that wait; delays_done/: which fired or were cancelled
    queues/<queue>/departures/                        what left without a group to remember it
    queues/<queue>/consumers/<group>/<group>.cur      cursors; .pel: pending entries (a snapshot)         FluxMQ's JSON
                                     <group>.pel.log  operations since; each frame has length and CRC
                                     <group>.group    empty: there is such a group, whatever else is missing

Batches. ``storage.record`` encodes by columns: a batch is one ``join`` over a template of constants, with the columns
assigned by slice. ``storage.record_runs`` reads a run of same-shaped records by comparing every stride-th byte and
cutting with one ``struct``; ``storage.record_decoder`` reads the rest. Tests hold both to a decoder that reads byte by
byte. A batch's offsets are consecutive; gaps lie between batches. S2 is written as Snappy and read as full S2 (repeat
codes fall back to our own bounded decoder); zstd uses level -1, and exactly one frame is read.

Writing. ``storage.log`` appends to the last segment and seals it by size or by the age of its first record. With a
write buffer, small appends wait as records and become one batch. A sync covers all that was written before it began and
confirms it; after it, the ``durable.mark`` moves and sealed segments get their index files. A failed sync is sticky
until the log is opened again; what nobody relied on (``unsynced_counts``) is cut off then, and nothing else. While the
disk has less than ``disk_reserve_bytes`` left, appends are refused, so that settlements, which free segments, still
find room. So is what sessions and retained messages would keep (``MqttBroker.take_room``), before anything of it
happens; acknowledgements, removals and clients that come back are written into the reserve, new sessions into
half of it, and the log of the sessions is compacted however little was written.

Segment files and group logs of a store share one bound on open files (``storage.open_files``); one with unsynced writes
stays open, since an error of the disk is only sure to reach those who had the file open when it was written. A part of
the limit on open files belongs to storage: ``server.accepting`` closes a connection whose descriptor lies in it before
anything else is done with it. What the system had no means for (``is_passing``: no descriptor, no memory, interrupted)
counts as not tried: the engine runs the job again later, and whoever waits for it waits on. Whatever the disk refuses
is a note, which the server logs, so many lines at most.

Indexes are hints. What an index file names was durable when it was written, and every lookup is checked against the
batch itself: a wrong index costs a scan, never an answer. So a cleanly closed log opens by reading the ends of its
files. ``.tix`` entries grow even when clocks step back: no record before an entry reaches its time.

Opening (``storage.log_opening``) finishes what a crash interrupted, trusts what the mark vouches for, scans the rest. A
torn tail is cut at the last whole batch, but never below the mark: durable bytes that are damaged stay as they are, and
a new segment goes on behind them with an offset that was never used. Damage with sound batches behind it is reported,
kept and skipped: at each start, as long as it is there, since who reads this one's log need not have read the last
one's. Opening may itself be interrupted anywhere. ``removed-<log>.mark`` and ``cleaner.json`` say which
segments went on purpose, so that others are missed. A queue of which something cannot be read is set aside
(``QueueRegistry.set_aside``), and the others go on; so is ``sessions``.

Deleting. A segment goes when every group has settled it, or by the queue's retention limits; a removal waits until the
name of what follows is on disk. While a tenant's quota or the disk refuses somebody, the segment that is written to is
sealed as well where nobody needs any of it (``QueueLimits.free_settled``): nothing else would seal it. Compaction
(``storage.compaction``, by ``storage.segment_copies``) copies sealed segments without replaced records:
``.seg.compacting``, synced, renamed to ``<base>-<end>.swap`` (from then on it counts), then it takes the place of its
originals; oldest first, so that a deletion marker never goes before what it deletes. Segments with damage stay as they
are. It serves keyed state; a work queue is never compacted, since nobody may take a message from a group that has not
settled it.

Group state. Every operation in a group's log is absolute, so a whole log may be replayed over a snapshot taken anywhere
within it, entry by entry. After 10 000 operations, and two per pending entry, ``.pel.log.next`` takes over, the entries
are encoded 1 000 a turn, and the next syncs write the snapshot, sync the folder and let the new log replace the old. A
log names the size of the one that it continues; if that one lost a byte, its successor does not count, and messages
come again rather than being passed over.

Coordinator state (``storage.state_log``): a log of key changes plus the newest three snapshots (``storage.snapshots``,
GoQueue's bytes). The sync task makes the log durable, then writes the snapshot; the log is dropped behind the oldest
snapshot kept.
"""
