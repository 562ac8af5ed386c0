"""Lives of queues over the wire, held to what docs/spec leaves a broker."""
