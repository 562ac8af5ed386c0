"""What is to be done and who waits for it: errors, the stores' protocols, confirms, the agenda of a turn.

Knows no other room.
"""
