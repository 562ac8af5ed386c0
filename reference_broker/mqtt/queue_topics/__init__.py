"""Queues as MQTT clients see them: topics and user properties, read into the types of the engine and back.

Knows the engine and its types, and no session or packet.
"""
