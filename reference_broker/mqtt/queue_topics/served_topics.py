"""Topics that the broker serves itself: a publish to one waits for its answer, and nobody subscribes to it."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.mqtt.queue_topics.addresses import QUEUE_PREFIXES
from assay.reference_broker.mqtt.queue_topics.admin_topics import ADMIN_PREFIX
from assay.reference_broker.mqtt.queue_topics.transaction_topics import TRANSACTION_PREFIX

REQUEST_PREFIXES: Final = (ADMIN_PREFIX, TRANSACTION_PREFIX)
SERVED_PREFIXES: Final = (*QUEUE_PREFIXES, *REQUEST_PREFIXES)
