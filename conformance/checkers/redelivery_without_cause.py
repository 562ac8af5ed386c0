"""``redelivery_without_cause`` (B3): a message came again although nothing had happened to the delivery before.

The deliveries of class B3 in :mod:`assay.conformance.checkers.redeliveries`, which defines causes and severities.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.redeliveries import RedeliveryClass, rows_of
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract

CHECKER = "redelivery_without_cause"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All B3 rows; ``index`` is the unjustified delivery's."""
    return rows_of(RedeliveryClass.WITHOUT_CAUSE, CHECKER, "more deliveries than causes", tables, contract)
