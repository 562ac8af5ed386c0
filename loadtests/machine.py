"""Where a figure was measured; without it a figure means nothing."""

from __future__ import annotations

import os
import platform

from assay.reference_broker.trace.results import Machine


def this_machine() -> Machine:
    """Operating system, Python, and the processors this process may use."""
    return Machine(platform=platform.platform(), python=platform.python_version(), cpus=len(os.sched_getaffinity(0)))
