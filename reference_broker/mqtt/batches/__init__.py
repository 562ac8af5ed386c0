"""Packets that are read or written many at once, by column: runs, and the templates of queue deliveries.

Knows ``wire`` and ``queue_topics``, and no connection.
"""
