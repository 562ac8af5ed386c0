"""Bytes of AMQP 0.9.1: frames, methods, field tables, content headers. It knows nothing of a broker."""
