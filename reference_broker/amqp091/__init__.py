"""AMQP 0.9.1 on the broker that all protocols share.

A publish goes the way of a batch: ``runs`` reads those of a chunk that stand together, or a channel puts one together
from its frames, and ``publishing`` gives each queue all that goes to it. Acknowledgements and deliveries likewise.

``wire`` turns bytes into frames, methods, tables and back; ``topology`` holds exchanges and bindings; the connection
and its channels turn methods into commands of the broker. A queue is a durable queue of the engine with one group.
"""
