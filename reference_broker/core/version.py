"""The version of the broker that clients are told."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def installed_version() -> str:
    """That of the installed distribution; ``unknown`` in a copy that is none."""
    try:
        return metadata.version("assay-mq")
    except metadata.PackageNotFoundError:
        return "unknown"
