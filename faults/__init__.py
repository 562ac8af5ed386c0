"""Scenarios on real processes, through a proxy, with kill -9.

Sim and faults: ``assay.faults.workload`` clients write the history; ``assay.conformance.checkers`` judge it. Checkers
turn events into the relations of ``conformance/checkers/tables.py`` first, and ``spark_analysis/checkers`` state the
same rules in SQL over the same relations; a property test holds both equal on random and on damaged histories.
"""
