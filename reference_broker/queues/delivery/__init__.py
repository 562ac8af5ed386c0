"""Who gets which message next, and what consumers say of it: dispatch, settlements, claims.

Knows ``groups`` and below.
"""
