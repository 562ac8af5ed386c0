"""A broker that remembers next to nothing, and reads its files in small pieces."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

_EQUIVALENTS = Path(__file__).parents[1] / "mutation" / "equivalents.toml"
_FEWEST = {"WINDOW": 4, "READ_BYTES": 8}
"""Acknowledgements have four bytes, and the heads of frames eight: less than one of them is never read."""


@contextmanager
def small_sizes() -> Iterator[None]:
    """As small as can be: constants of which ``mutation/equivalents.toml`` says that they change nothing but speed."""
    equivalents = tomllib.loads(_EQUIVALENTS.read_text(encoding="utf-8"))
    names = [
        constant.replace("/", ".").replace(".py::", ".")
        for entry in equivalents["size"]
        for constant in entry["constants"]
        if entry["reason"].startswith("how much is") and "storage_tools" not in constant
    ]
    assert len(names) > 30
    with ExitStack() as stack:
        for name in names:
            least = next((number for text, number in _FEWEST.items() if text in name), 1)
            stack.enter_context(mock.patch(f"assay.{name}", least))
        yield
