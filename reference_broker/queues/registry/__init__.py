"""All queues: how they come, are opened, and go; what they may hold in memory together.

Knows ``queue`` and below.
"""
