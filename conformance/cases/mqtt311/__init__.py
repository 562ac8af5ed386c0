"""Cases of MQTT 3.1.1."""
