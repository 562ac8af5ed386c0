"""Messages that wait for their time, in a log of their own.

Knows ``partitions`` and below, and the figures of ``groups``.
"""
