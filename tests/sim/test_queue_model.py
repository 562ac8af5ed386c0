"""The queue engine does what its oracle allows, whatever happens to it; the oracle stays small."""

from __future__ import annotations

import os
from pathlib import Path

import sim.queue_model
from sim.queue_model.machine import run

EXAMPLES = int(os.environ.get("ASSAY_QUEUE_EXAMPLES", "200"))
ORACLE_LINES = 400
TRANSACTION_LINES = 200


def test_the_oracle_is_small_and_knows_nothing_of_the_engine() -> None:
    folder = Path(sim.queue_model.__file__).parent
    assert len(folder.joinpath("oracle.py").read_text(encoding="utf-8").splitlines()) <= ORACLE_LINES
    assert len(folder.joinpath("transactions.py").read_text(encoding="utf-8").splitlines()) <= TRANSACTION_LINES
    for name in ("oracle", "transactions", "delayed", "places", "state", "figures"):
        assert "reference_broker" not in folder.joinpath(f"{name}.py").read_text(encoding="utf-8")


def test_the_engine_does_what_the_oracle_allows() -> None:
    run(EXAMPLES, seed=5)
