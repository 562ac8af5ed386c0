"""MQTT 3.1.1 and 5.0: packets, connections, and runs of packets that are handled together.

Turns. ``server.tcp`` gets a chunk and calls ``node.receive``; ``mqtt.connections.connection`` frames every whole packet
in it and keeps the rest. A turn handles at most 1 024 packets or runs of one connection, and as much work beside them
(``MAX_WORK``: receivers, filters). What is over stays where it is and gets in line (``state.unfinished``): each turn
goes on with four that wait, and the next one is due at once; such a client is read no further. A SUBSCRIBE or
UNSUBSCRIBE of many filters is a row of steps likewise; so are the subscriptions of sessions that ended
(``state.leaving``), timers, and WebSocket frames. Whoever looks ahead for a run never looks at the same packets twice:
what was refused is taken one by one. ``tests/mqtt/test_turn_bounds.py`` counts steps and copies. Who meets a bug of the
broker is cut, logged, and costs nobody else the turn.

Publishes. ``mqtt.connections.inbound`` takes a PUBLISH (``mqtt.connections.publish_acks``, its base, answers in order
and knows the quota). Three ways lead on:

- *A run*: packets behind it start with the same bytes (header, length, topic). At QoS 1 and 2 all go on with packet ids
  restamped by strided slices (``mqtt.batches.runs``), and the session remembers the run as one object. The plan who
  gets them is remembered per topic and dies with the tree's epoch.
- *A block*: packets of any topics and sizes behind it have the same receivers. They go on as they are, without packet
  ids (QoS 1 to QoS 0), or with ids of the receiver's in their places.
- *One message*: ``mqtt.sessions.mqtt_broker`` asks ``core.routing`` for the (cached) route; each
  ``mqtt.sessions.session`` sends it now or queues it. A cached route is held against the filters that changed since
  (``core.filter_changes``), found by the topic's own levels; topics that match the same filters share their receivers.
- *A queue message*: ``queues.engine.publish`` collects it for its partition; a topic that ends in ``$ack``, ``$nack``
  or ``$reject`` is a settlement. ``mqtt.connections.queue_batches`` takes those of one queue together, whatever their
  sizes, routing keys and user properties (``mqtt.batches.publish_batches``), and runs of ``$ack``s
  (``mqtt.batches.ack_runs``); an option of the queue sends a packet the general way.

Queue deliveries travel as QoS 1 PUBLISH packets of the consumer's session, but the session never resends them: when the
connection ends, the engine takes back what was unsettled and delivers it again, with a higher count. First deliveries
of one partition that differ only in offset and payload go out as one ``DeliveryRun``: one call, one block of bytes, one
object in the session's window.
"""
