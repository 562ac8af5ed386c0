"""Lives of AMQP 0.9.1 over the wire, held to the set of what the standard and its common extensions allow.

A ``life`` is a topology and a list of steps; chance draws it (``draw``). The ``player`` performs it on connections and
channels (``wires``, ``asking``). The ``oracle`` is a model without clock or socket: ``topology`` says where a message
goes, ``state`` what a queue may hold, and what comes must fit one of the copies that may be there. Between two steps
the player waits until all that was sent has been handled, so that only what the standard leaves open stays open.
"""
