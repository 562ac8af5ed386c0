"""One MQTT connection: framing, handshake, what a client publishes and is sent, its answers in order, its limits.

Knows everything below: ``wire``, ``queue_topics``, ``batches``, ``session``.
"""
