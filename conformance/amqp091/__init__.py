"""The suite's own AMQP 0.9.1 client: connections and channels of a case, over the bytes of ``conformance.wire``."""
