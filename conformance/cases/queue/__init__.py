"""Cases of the durable queues addressed as ``$queue/<name>``, over MQTT 5.0 and 3.1.1."""
