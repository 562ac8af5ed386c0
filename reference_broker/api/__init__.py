"""What protocols of requests and answers (HTTP; gRPC and others after it) ask of a running broker, in its event loop.

``turns``: a typed operation of the engine within a turn, and the wait for its confirm. ``callers``: who asks, and what
they may. ``problems``: one table of what can go wrong, with the codes that clients see. ``waiting``: how many requests
wait at once. Nothing here knows a protocol, and nothing is a second implementation of what the engine does.
"""
