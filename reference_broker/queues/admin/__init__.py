"""Requests about queues with JSON in and out, one handler each; what brings them is a protocol's.

Knows everything; nothing here knows it.
"""
