"""YAML as all our files are read: a key that stands twice is an error, since one of the two would be lost."""

from __future__ import annotations

from collections.abc import Hashable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """A text is not YAML, or not UTF-8. ``str(error)`` names the place."""


class _Loader(_SafeLoader):
    """Builds plain data only."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            # "<<" merges another mapping in and may stand several times.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    mark = key.start_mark
                    message = f"the key {key.value!r} stands twice (line {mark.line + 1}, column {mark.column + 1})"
                    raise YamlError(message)
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def parse_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises :class:`YamlError`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise YamlError(str(error)) from error
    except RecursionError as error:
        raise YamlError("it is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, YamlError):
            raise
        # A date that does not exist, for one.
        raise YamlError(str(error)) from error


def read_yaml(path: Path | Traversable) -> Any:
    """Plain data of a YAML file. Raises :class:`OSError`, :class:`YamlError`."""
    return parse_yaml(read_utf8(path))


def read_utf8(path: Path | Traversable) -> str:
    """A file's text. Raises :class:`OSError`, and :class:`YamlError` for what is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise YamlError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
