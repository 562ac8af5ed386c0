"""Columns of ``samples.parquet``. Only who writes such files has pyarrow, so nothing else here imports this module."""

from __future__ import annotations

from typing import Final, get_type_hints

import msgspec
import pyarrow as pa

from assay.reference_broker.trace.schema import LatencySample

SAMPLE_SCHEMA: Final = pa.schema(
    [
        (field.name, pa.int64() if get_type_hints(LatencySample)[field.name] is int else pa.string())
        for field in msgspec.structs.fields(LatencySample)
    ]
)
"""The fields of :class:`LatencySample`, in its order: whole numbers and texts."""
