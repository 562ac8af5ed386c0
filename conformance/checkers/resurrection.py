"""``resurrection`` (A15): a message came again after the broker had confirmed its settlement.

The deliveries of class A15 in :mod:`assay.conformance.checkers.redeliveries`, which defines causes and severities.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.redeliveries import RedeliveryClass, rows_of
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract

CHECKER = "resurrection"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All A15 rows; ``index`` is the delivery that came after the confirmed settlement."""
    return rows_of(RedeliveryClass.RESURRECTION, CHECKER, "came after its settlement was confirmed", tables, contract)
