"""When a failed delivery is tried again, and when it has failed for good."""

from __future__ import annotations

from assay.reference_broker.config import RetryConfig

RETRIES_EXCEEDED = "max retries exceeded"
TOTAL_TIMEOUT_EXCEEDED = "total timeout exceeded"


def backoff_s(retry: RetryConfig, failures: int) -> float:
    """Seconds to wait after the ``failures``-th failure (from 1): exponential, capped."""
    try:
        wait = retry.initial_backoff_s * retry.multiplier ** (failures - 1)
    except OverflowError:
        return retry.max_backoff_s
    return min(wait, retry.max_backoff_s)


def exhausted_reason(retry: RetryConfig, delivery_count: int, age_s: float) -> str | None:
    """Why a message that just failed is not tried again; None while it may be."""
    if delivery_count > retry.max_retries:
        return RETRIES_EXCEEDED
    if 0 < retry.total_timeout_s < age_s:
        return TOTAL_TIMEOUT_EXCEEDED
    return None
