"""Depth, bytes, time to live and retention of one queue.

Knows ``dead_letters``, ``groups`` and below.
"""
