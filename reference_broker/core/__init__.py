"""What every protocol shares: who may do what, tenants, who gets a topic, timers, and bounds on what clients take up.

It knows no packets, and no state of a protocol.

Who may do what. ``auth`` verifies names (scrypt, SCRAM through ``auth_scram``). A password not seen before is a job
like a sync: the connection waits in ``Phase.VERIFYING`` and reads nothing meanwhile (``mqtt.connections.login``).
``mqtt.connections.enhanced_auth`` carries SCRAM in AUTH packets, and CONNACK waits in ``Phase.AUTHENTICATING``.
``core.access`` compiles the rules into ``Grants`` when a client connects. PUBLISH, wills and SUBSCRIBE ask them;
deliveries need not, since a filter is granted only if all it reaches is allowed. A session belongs to its user.
``core.queue_rights`` has a row for each operation on queues, which drives the checks and which a test walks.
``BrokerNode.reload`` takes other users, rules and tenants; ``mqtt.sessions.access_review`` then, at a start and when a
session returns asks again about all that was granted, in portions.

Tenants (``core.tenants``). A client's tenant is found when it connects; names are translated between its view and the
engine's (``<tenant>.<queue>``) where they come in and go out, and quotas are charged there. The engine knows none of it
but a hook that is asked before a queue is created. Without tenants in the configuration each of these places costs one
comparison with None.

Figures and limits. ``core.traffic`` counts once a chunk, run or turn; ``mqtt.sessions.sys_topics`` turns the counts
into ``$SYS`` messages only while somebody subscribes. ``mqtt.connections.throttle`` stands before the input of a client
with a publish rate and holds back what is not paid for; the driver sees ``wants_pause``. ``core.rates`` holds the
buckets.
"""
