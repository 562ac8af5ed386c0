"""Messages that failed for good: what is written to the dead-letter queue, and who is alerted.

Knows ``groups`` and below.
"""
