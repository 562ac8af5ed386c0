"""Settings of queues as they are typed: ``retry.max_retries=3``, or in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from assay.reference_broker.commands.ends import UsageError


def settings_of(pairs: Iterable[str], unset: Iterable[str] = (), file: str | None = None) -> dict[str, Any]:
    """What a file has, then what pairs say: values as in YAML, members of members by dotted names. ``unset`` are null.

    Raises :class:`UsageError`, :class:`OSError`.
    """
    found = {} if file is None else _read(Path(file))
    for pair in pairs:
        name, mark, text = pair.partition("=")
        if not mark or not name:
            raise UsageError(f"{pair!r} is no setting like retry.max_retries=3")
        _put(found, name, _value(text, pair))
    for name in unset:
        _put(found, name, None)
    return found


def _value(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: {' '.join(str(error).split())}") from error


def _put(settings: Any, name: str, value: Any) -> None:
    *outer, last = name.split(".")
    for part in outer:
        settings = settings.setdefault(part, {})
        if not isinstance(settings, dict):
            raise UsageError(f"{name}: {part} has no members")
    settings[last] = value


def _read(path: Path) -> dict[str, Any]:
    found = _value(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no settings by name")
    return found
