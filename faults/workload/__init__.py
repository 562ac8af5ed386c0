"""The clients of a queue workload, sans-IO: the fault runner gives them sockets, the simulator virtual time."""

from assay.faults.workload.client import ClientPhase, ClientRole, WorkloadClient, is_hit
from assay.faults.workload.consumer import ConsumerClient
from assay.faults.workload.history import HistoryRecorder, intended_ns
from assay.faults.workload.payload import Payload, PayloadError, decode_payload, encode_payload
from assay.faults.workload.plan import PlanPhase, WorkloadPlan, client_names, substream
from assay.faults.workload.producer import ProducerClient

__all__ = [
    "ClientPhase",
    "ClientRole",
    "ConsumerClient",
    "HistoryRecorder",
    "Payload",
    "PayloadError",
    "PlanPhase",
    "ProducerClient",
    "WorkloadClient",
    "WorkloadPlan",
    "client_names",
    "decode_payload",
    "encode_payload",
    "intended_ns",
    "is_hit",
    "substream",
]
