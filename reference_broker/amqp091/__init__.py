"""AMQP 0.9.1 on the broker that all protocols share.

``wire`` turns bytes into frames, methods, tables and back; ``topology`` holds exchanges and bindings; the connection
and its channels turn methods into commands of the broker. A queue is a durable queue of the engine with one group.
"""
