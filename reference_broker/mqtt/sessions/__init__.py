"""What MQTT clients leave with the broker: sessions, retained messages, wills, ``$SYS``, and their ways to queues.

Knows ``core``, the queue engine and ``queue_topics``, and no bytes.

What must survive. Sessions that outlive their connection keep their subscriptions, deliveries and received packet ids
in ``mqtt.sessions.tracked_dict`` dicts, which remember the keys that changed. At the end of a turn
``mqtt.sessions.session_journal`` compares what was touched with what is written and makes records of the difference
(``mqtt.sessions.session_records``), one per key; a message that came and was acknowledged within one turn leaves none,
and one for many sessions is written once. ``storage.session_store`` appends them before the turn's output is handed
over, syncs and compacts. With ``fsync`` a connection whose output depends on the turn's write holds it back
(``core.output_gate``) until a sync covers it, and everything behind it. A failed write closes exactly the
connections that depend on it. ``mqtt.sessions.session_restore`` puts the state back. Other sessions use plain dicts and
pay nothing.

Back pressure. A connection with more unread than ``mqtt.unread_high_water_bytes`` is full: it closes its session's
window, so that messages are queued, consumers of queues stall, and walks through retained messages stop, at no cost
where nobody is slow. What ``note_backlog`` hears opens it again and wakes the session; timers look at those that are
full, since not every transport tells, and cut one that takes nothing for ``mqtt.unread_timeout_s``.
``mqtt.sessions.sending`` goes on with the woken ones in turn, a portion each, at the end of the turn, until its bytes
and work are used up. Retained messages are not copied for a subscriber: a walk (``RetainedStore.walk``) goes through
the tree as it is, and what is left of it stays with the session, over a restart as a mark at its subscription.

Shares. What goes to a member of a shared subscription is a ``SharedOutgoing``, which names its share, on disk as well.
When the member's session ends, ``MqttBroker.pass_on`` gives it to others, in order; of QoS 2 only what was not sent
(5.0 4.8.2-5). After UNSUBSCRIBE that holds for what is queued. What nobody is left for counts as dropped, and is traced
as discarded.
"""
