"""An oracle for any MQTT broker: whole lives over the wire, held to the set of what the standards allow.

A *life* (``life``) is a few clients and a list of steps. Chance draws lives (``draw``), a ``player`` performs
them on sockets and ends each with an audit of all that the broker should still know. Every packet, in both directions,
goes through the ``referee``, a model in plain Python without clock or socket: what a client sends gives sessions
*claims* (``claims``) on messages, what arrives must fit one, and what must come and does not is asked for until the
patience of the player ends. ``rules`` has the statements behind each objection. A ``campaign`` runs many lives, a
``team`` does so in several processes; what a finding is shrunk to is kept as a file that can be replayed.
``queues`` and ``amqp`` have lives and models of their own, which campaigns play in the same way (``games``); those of
queues are played over HTTP, too (``http``).
"""
