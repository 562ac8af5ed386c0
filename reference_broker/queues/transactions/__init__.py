"""Producers with numbers, and transactions over several queues.

Knows ``queue`` and below.
"""
