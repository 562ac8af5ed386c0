"""The hunt: many seeds with schedules that chance draws, findings by class, small scenarios out of large ones.

``fault_draws`` and ``option_draws`` say what may be drawn, and how; ``workload_kinds`` how a workload gets smaller. A
new kind of fault, option or workload is one row there. ``schedule`` draws, ``explore`` runs, ``findings`` groups,
``shrink`` makes small, ``states`` and ``coverage`` say which rare states were reached, and which never were.
"""
