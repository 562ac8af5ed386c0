"""What is done to a whole queue or group on request: browse, purge, replay, figures.

Knows ``registry`` and below.
"""
