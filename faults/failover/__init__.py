"""How long real clusters of three nodes take no messages when the leader of a queue dies or freezes.

Measured, not judged: ``assay sim model compare`` holds the models of ``assay.sim.models`` to what is written here.
"""
