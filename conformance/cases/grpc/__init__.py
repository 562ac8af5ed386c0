"""Cases of gRPC: FluxMQ's queue service and GoQueue's services."""
