"""Spark schemas, derived from the records of ``trace``: one definition, so the two cannot drift apart."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, get_type_hints

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from assay.reference_broker.trace.schema import HistoryEvent, LatencySample, Record, TraceEvent

_SPARK_TYPES: Final[dict[type, DataType]] = {
    int: LongType(),
    str: StringType(),
    bool: BooleanType(),
    float: DoubleType(),
}


def struct_type(record: type[Record]) -> StructType:
    """The schema of a flat record; fields without a default are not nullable.

    Raises :class:`TypeError` for a field that is neither a number, a text, a truth value nor a text enumeration.
    """
    hints = get_type_hints(record)
    fields = []
    for field in msgspec.structs.fields(record):
        kind = hints[field.name]
        plain = str if isinstance(kind, type) and issubclass(kind, enum.StrEnum) else kind
        if plain not in _SPARK_TYPES:
            message = f"{record.__name__}.{field.name}: no Spark type for {kind}"
            raise TypeError(message)
        fields.append(StructField(field.name, _SPARK_TYPES[plain], nullable=not field.required))
    return StructType(fields)


_ARROW_TYPES: Final[dict[DataType, pa.DataType]] = {
    LongType(): pa.int64(),
    StringType(): pa.string(),
    BooleanType(): pa.bool_(),
    DoubleType(): pa.float64(),
}


def literal_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: StructType) -> DataFrame:
    """A small frame from rows in the order of the schema's fields; it goes by Arrow, so no Python worker starts."""
    columns = {
        field.name: pa.array([row[place] for row in rows], _ARROW_TYPES[field.dataType])
        for place, field in enumerate(schema.fields)
    }
    return spark.createDataFrame(pa.table(columns), schema)


HISTORY_TYPE: Final = struct_type(HistoryEvent)
TRACE_TYPE: Final = struct_type(TraceEvent)
SAMPLE_TYPE: Final = struct_type(LatencySample)


def filled(record: type[Record], source: DataFrame) -> list[Column]:
    """One column for each field of the record, its default where the source leaves it out or lacks the column."""
    columns = []
    for field, spark_field in zip(msgspec.structs.fields(record), struct_type(record).fields, strict=True):
        value = sf.col(field.name) if field.name in source.columns else sf.lit(None)
        value = value.cast(spark_field.dataType)
        if not field.required:
            value = sf.coalesce(value, sf.lit(field.default))
        columns.append(value.alias(field.name))
    return columns


def breaks_schema(record: type[Record]) -> Column:
    """True for a parsed row that the record's own decoder would refuse: a required field missing, an unknown name."""
    hints = get_type_hints(record)
    wrong = sf.lit(False)
    for field in msgspec.structs.fields(record):
        column = sf.col(field.name)
        if field.required:
            wrong = wrong | column.isNull()
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
            wrong = wrong | (column.isNotNull() & ~column.isin([str(member) for member in kind]))
    return wrong
