"""The schema registry: subjects with versions of JSON Schemas, what may follow what, and whether a message fits.

``document`` reads one schema and bounds what it can cost; ``compatibility`` decides by a table of keywords what may
follow what, over ``facts``; ``registry`` keeps subjects, versions and ids, ``log`` makes them durable, ``checks`` holds
messages against them. Nothing here knows HTTP; without the extra ``schemas`` all of it refuses.
"""
