"""Models of queues, brokers and clusters on SimPy: one module a model, each with a check of its own.

A model is a function of parameters (``parameters/<model>.yaml``, each with its source) and a seed. It returns rows:
what it computed, beside a closed form, another exact method or a measurement, and how far the two may differ. A row
that differs by more fails the model. ``mistakes.py`` holds errors, such as the wrong discipline of a queue, that the
checks refuse. Nothing here runs without an end: customers, events and simulated time have limits.
"""
