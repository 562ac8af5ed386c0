"""``concurrent_delivery`` (B6): one message in the hands of two consumers of a group at once.

The deliveries of class B6 in :mod:`assay.conformance.checkers.redeliveries`, which defines causes and severities.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.redeliveries import RedeliveryClass, rows_of
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract

CHECKER = "concurrent_delivery"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All B6 rows; ``index`` is the second consumer's delivery."""
    return rows_of(RedeliveryClass.CONCURRENT, CHECKER, "another consumer still held it", tables, contract)
