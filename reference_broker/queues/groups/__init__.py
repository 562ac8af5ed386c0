"""A consumer group: where it stands in each partition, its members and their assignment; and what a queue holds.

Knows ``partitions`` and below.
"""
