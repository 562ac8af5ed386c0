"""One durable queue: everything above put together, and how messages get in.

Knows all rooms but those that follow.
"""
