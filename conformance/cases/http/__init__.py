"""Cases of the HTTP APIs: the queue routes, GoQueue's, FluxMQ's bridge, the schema registry."""
