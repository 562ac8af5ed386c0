"""Files of other brokers: GoQueue's and FluxMQ's. Read to import and inspect, written to export."""
