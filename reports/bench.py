"""A bench run as tables: per case, each broker's rate, and how many times faster the first broker is."""

from __future__ import annotations

import msgspec

from assay.reference_broker.trace.results import RunKind, RunResult

CEILING = "null"
"""The broker that does nothing: its rate is the most that the client can measure."""
_RATE = "messages_per_s"


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One broker in one case."""

    broker: str
    version: str
    rate_per_s: float
    share: float
    """Of the fastest broker of the case, 0 to 1; the ceiling is cut at 1."""
    ratio: float | None
    """Rate of the first broker over this one's; ``None`` for the first itself and for the ceiling."""
    client_load: float | None

    @property
    def is_ceiling(self) -> bool:
        return self.broker == CEILING


class BenchCase(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, the brokers in the order of the run."""

    name: str
    rows: list[BenchRow]

    @property
    def peers(self) -> list[BenchRow]:
        """Other products than the first; variants of one broker are named ``broker/variant``."""
        product = self.rows[0].broker.partition("/")[0]
        return [row for row in self.rows if row.ratio is not None and row.broker.partition("/")[0] != product]


def bench_cases(result: RunResult) -> list[BenchCase]:
    """Read the metrics ``<broker>.<case>.messages_per_s`` of a bench; empty for any other run."""
    if result.kind is not RunKind.BENCH:
        return []
    rates: dict[str, dict[str, float]] = {}
    for key, value in result.metrics.items():
        parts = key.rsplit(".", 2)
        if len(parts) == 3 and parts[2] == _RATE and isinstance(value, int | float):
            rates.setdefault(parts[1], {})[parts[0]] = float(value)
    return [BenchCase(name=case, rows=_rows(result, case, by_broker)) for case, by_broker in rates.items()]


def _rows(result: RunResult, case: str, by_broker: dict[str, float]) -> list[BenchRow]:
    first = next(iter(by_broker))
    fastest = max((rate for broker, rate in by_broker.items() if broker != CEILING), default=0.0)
    rows = []
    for broker, rate in by_broker.items():
        load = result.metrics.get(f"{broker}.{case}.client_load")
        compared = broker not in {first, CEILING} and rate > 0
        rows.append(
            BenchRow(
                broker=broker,
                version=str(result.metrics.get(f"{broker}.version", "")),
                rate_per_s=rate,
                share=min(1.0, rate / fastest) if fastest > 0 else 0.0,
                ratio=by_broker[first] / rate if compared else None,
                client_load=load if isinstance(load, int | float) else None,
            )
        )
    return rows
