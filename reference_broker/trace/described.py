"""Types that msgspec is told to decode, safe to be first used by several threads at once.

msgspec works out what a struct is like when it is first decoded, and notes it on the struct before it is complete: a
second thread that comes meanwhile reads what is not there, and the process dies (msgspec 0.22.0). Whoever starts two
brokers in two threads would do just that. So every such type passes through :func:`described`, which one thread at a
time does; a test asks for it.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_known: set[Any] = set()
_lock = threading.Lock()


@overload
def described(kind: type[_T]) -> type[_T]: ...
@overload
def described(kind: Any) -> Any: ...
def described(kind: Any) -> Any:
    """The type itself, once msgspec knows all that is in it."""
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
