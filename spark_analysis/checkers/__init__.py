"""The checkers in Spark SQL: the same rules as the in-memory checkers, for any number of histories of any size.

A rule is a query over :class:`assay.spark_analysis.tables.Tables` whose rows are anomalies: ``run_id, checker, anomaly,
severity, queue, consumer_group, value, idx, detail``. No rule collects the events of a message in one place; they use
joins, window functions and two-level aggregation, so memory does not grow with a message's life.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from assay.reference_broker.trace.schema import OpKind
from assay.spark_analysis.checkers.attempts import DELIVERY_COUNT, DLQ_WITHOUT_CAUSE
from assay.spark_analysis.checkers.attempts import PARAMETERS as ATTEMPT_PARAMETERS
from assay.spark_analysis.checkers.evidence import findings_by_run
from assay.spark_analysis.checkers.loss import DLQ_LOSS, LOST
from assay.spark_analysis.checkers.order import ORDER
from assay.spark_analysis.checkers.phantom import DELIVERED_TWICE, ONE_OFFSET_TWO_VALUES, PHANTOM, STORED_TWICE
from assay.spark_analysis.checkers.plain_mqtt import (
    DUPLICATE_PARAMETERS,
    MQTT_DUPLICATE,
    MQTT_SESSION,
    RETAINED,
    SESSION_PARAMETERS,
    WILL_PARAMETERS,
    WILLS,
)
from assay.spark_analysis.checkers.redelivery import PARAMETERS, UNJUSTIFIED, WINDOWS
from assay.spark_analysis.checkers.transactions import HALF_DONE, PRECOMMITTED
from assay.spark_analysis.checkers.waiting import CURSOR, DELAYS
from assay.spark_analysis.checkers.waiting import PARAMETERS as WAITING_PARAMETERS
from assay.spark_analysis.tables import Tables

__all__ = ["RULES", "Rule", "anomalies", "findings_by_run"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One query and what it looks for."""

    checkers: tuple[str, ...]
    anomalies: dict[str, str]
    """Catalogue id to meaning."""
    sql: str
    parameters: dict[str, int] = {}
    """Values of the query's ``:name`` markers."""
    needs: OpKind | None = None
    """Without any event of this kind it finds nothing, and is not asked."""


RULES: Final = (
    Rule(
        checkers=("lost",),
        anomalies={
            "A1": "acknowledged, never delivered to a group that had to get it",
            "F6": "delivered, never settled, and yet not delivered again",
        },
        sql=LOST,
    ),
    Rule(
        checkers=("phantom",),
        anomalies={
            "A5": "delivered, never sent",
            "A6": "delivered from another queue than it was sent to",
            "A7": "delivered with another payload than was sent",
            "A9": "delivered before it was sent",
            "A10": "refused by the broker, yet delivered",
        },
        sql=PHANTOM,
    ),
    Rule(checkers=("phantom",), anomalies={"C1": "two values at one offset"}, sql=ONE_OFFSET_TWO_VALUES),
    Rule(checkers=("duplicate",), anomalies={"B1": "sent once, stored twice"}, sql=STORED_TWICE),
    Rule(checkers=("duplicate",), anomalies={"B2": "delivered twice against the contract"}, sql=DELIVERED_TWICE),
    Rule(
        checkers=("redelivery_without_cause", "concurrent_delivery", "resurrection"),
        anomalies={
            "B3": "delivered again without a cause",
            "B6": "in the hands of two consumers of a group at once",
            "A15": "delivered again after its settlement was confirmed",
        },
        sql=UNJUSTIFIED,
        parameters=PARAMETERS,
    ),
    Rule(checkers=("order",), anomalies={"D8": "delivered after a later one of its producer and key"}, sql=ORDER),
    Rule(
        checkers=("dlq_loss",),
        anomalies={"A11": "rejected or out of retries, and not in the dead-letter queue"},
        sql=DLQ_LOSS,
    ),
    Rule(
        checkers=("dlq_without_cause",),
        anomalies={"A12": "dead-lettered without a cause"},
        sql=DLQ_WITHOUT_CAUSE,
        parameters=ATTEMPT_PARAMETERS,
    ),
    Rule(
        checkers=("delivery_count",),
        anomalies={
            "B4": "redelivered flag or delivery count contradicts the history",
            "B7": "delivered more often than the limit allows",
        },
        sql=DELIVERY_COUNT,
    ),
    Rule(
        checkers=("transactions",),
        anomalies={"E1": "delivered before its commit was asked for"},
        sql=PRECOMMITTED,
        needs=OpKind.COMMIT,
    ),
    Rule(
        checkers=("transactions",),
        anomalies={
            "E2": "missing from a transaction of which something was seen",
            "E3": "acknowledged in a transaction, and the copy that goes with it does not agree",
        },
        sql=HALF_DONE,
        needs=OpKind.COMMIT,
    ),
    Rule(
        checkers=("delays",),
        anomalies={"D13": "delivered before its time", "A17": "delivered although it was taken back"},
        sql=DELAYS,
        parameters=WAITING_PARAMETERS,
    ),
    Rule(checkers=("cursor",), anomalies={"F14": "older than the group that began at the latest"}, sql=CURSOR),
    Rule(
        checkers=("mqtt_duplicate",),
        anomalies={
            "B2": "delivered twice at QoS 2 or 0",
            "B3": "delivered twice over one connection",
            "B6": "delivered to two members of a share without a cause",
        },
        sql=MQTT_DUPLICATE,
        parameters=DUPLICATE_PARAMETERS,
        needs=OpKind.CONNECT,
    ),
    Rule(
        checkers=("mqtt_session",),
        anomalies={"S1": "a session lost before its time", "S2": "a session that outlived its time, or never was"},
        sql=MQTT_SESSION,
        parameters=SESSION_PARAMETERS,
        needs=OpKind.CONNECT,
    ),
    Rule(
        checkers=("retained",),
        anomalies={
            "R1": "an older retained message, or a removed one",
            "R2": "nothing where a retained message must be",
            "R3": "a retained message that nobody wrote there",
        },
        sql=RETAINED,
        needs=OpKind.READ,
    ),
    Rule(
        checkers=("wills",),
        anomalies={
            "W1": "a will that was due and never came",
            "W2": "a will that was withdrawn, and came",
            "W3": "a will before its delay was over",
        },
        sql=WILLS,
        parameters=WILL_PARAMETERS,
        needs=OpKind.WILL,
    ),
)


def anomalies(tables: Tables) -> DataFrame:
    """The rows of all rules, of all runs, computed and stored."""
    windows = tables.stored("windows", partial(tables.query, WINDOWS))
    asked = [rule for rule in RULES if rule.needs is None or rule.needs in tables.told]
    rules = [partial(tables.query, rule.sql, rule.parameters, windows=windows) for rule in asked]
    return tables.stored("anomalies", *rules)
