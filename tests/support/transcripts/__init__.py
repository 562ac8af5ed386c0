"""What the broker said and wrote in a hundred lives that chance drew: a change of behaviour anywhere shows as a diff.

``python tests/support/transcripts --update`` writes them anew, and shows the difference: whoever changes what the
broker does reads it there. What is free to the broker (how output is cut into chunks, in which order clients are
served, how many records a batch has) is not in them, so that a change which keeps the behaviour changes none.
"""
