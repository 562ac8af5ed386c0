"""The bench's own AMQP 0.9.1 bytes: frames, methods, field tables, content, without any code of a broker.

Like the rest of :mod:`assay.conformance.wire` it is sans-IO and knows no clock::

    data = encode_method(1, Method("queue.declare", queue="orders", durable=True))
    assembler = Assembler()
    for event in assembler.feed(data_from_the_broker):
        if isinstance(event, Arrival) and event.name == "queue.declare-ok": ...
"""

from assay.conformance.wire.amqp091.assembler import Arrival, Assembler, Heartbeat
from assay.conformance.wire.amqp091.codec import (
    decode_frame_payload,
    encode_body,
    encode_content,
    encode_frame,
    encode_header,
    encode_method,
)
from assay.conformance.wire.amqp091.frames import (
    AMQP_091,
    FRAME_END,
    FRAME_MIN_BYTES,
    FRAME_OVERHEAD_BYTES,
    HEARTBEAT,
    PROTOCOL_HEADER,
    Frame,
    FrameReader,
    FrameType,
    MalformedFrameError,
    ProtocolHeader,
)
from assay.conformance.wire.amqp091.methods import (
    CLASSES,
    CONSTANTS,
    METHODS,
    PROPERTIES,
    Method,
    MethodSpec,
    is_hard_error,
)
from assay.conformance.wire.amqp091.text import describe, describe_bytes
from assay.conformance.wire.amqp091.values import (
    Typed,
    ValueDecodeError,
    decode_table,
    encode_table,
)

__all__ = [
    "AMQP_091",
    "CLASSES",
    "CONSTANTS",
    "FRAME_END",
    "FRAME_MIN_BYTES",
    "FRAME_OVERHEAD_BYTES",
    "HEARTBEAT",
    "METHODS",
    "PROPERTIES",
    "PROTOCOL_HEADER",
    "Arrival",
    "Assembler",
    "Frame",
    "FrameReader",
    "FrameType",
    "Heartbeat",
    "MalformedFrameError",
    "Method",
    "MethodSpec",
    "ProtocolHeader",
    "Typed",
    "ValueDecodeError",
    "decode_frame_payload",
    "decode_table",
    "describe",
    "describe_bytes",
    "encode_body",
    "encode_content",
    "encode_frame",
    "encode_header",
    "encode_method",
    "encode_table",
    "is_hard_error",
]
