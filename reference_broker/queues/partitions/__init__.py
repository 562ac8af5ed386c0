"""One partition: its log, what is in memory of it, producers, what expired and what left.

Knows ``messages`` and below.
"""
