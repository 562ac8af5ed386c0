"""The cases for MQTT 5.0, one module per area."""
