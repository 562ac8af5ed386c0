"""A dict that remembers which of its keys changed, for those who write changes down."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar, overload

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")
_MISSING = object()


class TrackedDict(dict[K, V]):
    """``changed`` holds the keys set or deleted since it was last emptied, in the order of their last change."""

    __slots__ = ("_on_change", "changed")

    def __init__(self, items: Mapping[K, V], on_change: Callable[[], None]) -> None:
        """All ``items`` count as changed. ``on_change`` is called at every change."""
        super().__init__(items)
        self._on_change = on_change
        self.changed: dict[K, None] = dict.fromkeys(items)

    def _touch(self, key: K) -> None:
        self.changed.pop(key, None)
        self.changed[key] = None
        self._on_change()

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._touch(key)

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._touch(key)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V, /) -> V: ...
    @overload
    def pop(self, key: K, default: D, /) -> V | D: ...
    def pop(self, key: K, default: object = _MISSING, /) -> object:
        if key in self:
            self._touch(key)
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def popitem(self) -> tuple[K, V]:
        key, value = super().popitem()
        self._touch(key)
        return key, value

    def clear(self) -> None:
        keys = list(self)
        super().clear()
        for key in keys:
            self._touch(key)

    def setdefault(self, key: K, default: V, /) -> V:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = (), /) -> None:  # type: ignore[override]
        pairs = dict(items)
        super().update(pairs)
        for key in pairs:
            self._touch(key)

    def __ior__(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> TrackedDict[K, V]:  # type: ignore[override, misc]
        self.update(items)
        return self
