"""Sessions, retained messages, access, tenants and timers, and how sessions meet queues.

Who may do what. ``auth`` verifies names (scrypt, SCRAM through ``auth_scram``). A password not seen before is a job
like a sync: the connection waits in ``Phase.VERIFYING`` and reads nothing meanwhile (``mqtt.login``).
``mqtt.enhanced_auth`` carries SCRAM in AUTH packets, and CONNACK waits in ``Phase.AUTHENTICATING``. ``core.access``
compiles the rules into ``Grants`` when a client connects. PUBLISH, wills and SUBSCRIBE ask them; deliveries need not,
since a filter is granted only if all it reaches is allowed. A session belongs to its user. ``queues.admin.rights`` has
a row for each operation on queues, which drives the checks and which a test walks. ``BrokerNode.reload`` takes other
users, rules and tenants; ``core.access_review`` then, at a start and when a session returns asks again about all that
was granted, in portions.

Tenants (``core.tenants``). A client's tenant is found when it connects; names are translated between its view and the
engine's (``<tenant>.<queue>``) where they come in and go out, and quotas are charged there. The engine knows none of it
but a hook that is asked before a queue is created. Without tenants in the configuration each of these places costs one
comparison with None.

What must survive. Sessions that outlive their connection keep their subscriptions, deliveries and received packet ids
in ``core.watched`` dicts, which remember the keys that changed. At the end of a turn ``core.session_journal`` compares
what was touched with what is written and makes records of the difference (``core.session_records``), one per key; a
message that came and was acknowledged within one turn leaves none, and one for many sessions is written once.
``storage.session_store`` appends them before the turn's output is handed over, syncs and compacts. With ``fsync`` a
connection whose output depends on the turn's write holds it back (``mqtt.held_output``) until a sync covers it, and
everything behind it. A failed write closes exactly the connections that depend on it. ``core.session_restore`` puts the
state back. Other sessions use plain dicts and pay nothing.

Back pressure. A connection with more unread than ``mqtt.unread_high_water_bytes`` is full: it closes its session's
window, so that messages are queued, consumers of queues stall, and walks through retained messages stop, at no cost
where nobody is slow. What ``note_backlog`` hears opens it again and wakes the session; timers look at those that are
full, since not every transport tells, and cut one that takes nothing for ``mqtt.unread_timeout_s``. ``core.sending``
goes on with the woken ones in turn, a portion each, at the end of the turn, until its bytes and work are used up.
Retained messages are not copied for a subscriber: a walk (``RetainedStore.walk``) goes through the tree as it is, and
what is left of it stays with the session, over a restart as a mark at its subscription.

Shares. What goes to a member of a shared subscription is a ``SharedOutgoing``, which names its share, on disk as well.
When the member's session ends, ``MessagePaths.pass_on`` gives it to others, in order; of QoS 2 only what was not sent
(5.0 4.8.2-5). After UNSUBSCRIBE that holds for what is queued. What nobody is left for counts as dropped, and is traced
as discarded.

Figures and limits. ``core.traffic`` counts once a chunk, run or turn; ``core.sys_topics`` turns the counts into
``$SYS`` messages only while somebody subscribes. ``mqtt.throttle`` stands before the input of a client with a publish
rate and holds back what is not paid for; the driver sees ``wants_pause``. ``core.rates`` holds the buckets.
"""
