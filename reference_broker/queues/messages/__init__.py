"""A message as a queue stores it, and what its publisher may ask for: addresses, options, keys, lanes.

Knows ``jobs``.
"""
