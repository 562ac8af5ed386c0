"""MQTT packets as bytes and as structs: types, properties, codec, errors with their reason codes. Knows no state."""
