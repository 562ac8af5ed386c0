"""A fuzzer for the sans-IO broker node: grammar-made sessions, damaged bytes, time jumps, checks after each step.

A *life* is one broker node with a handful of connections. What happens to it is a list of actions (``actions``) with
concrete bytes, so a failure is replayed, and shrunk, without the generator that made it. ``grammar`` makes valid
sessions, ``mutation`` damages them, ``world`` carries actions out and checks what comes back with the suite's own
codec, ``inspection`` looks at the broker's bounds from inside, ``corpus`` remembers the inputs that reached something
new, and ``campaign`` runs lives until enough packets were sent.
"""
