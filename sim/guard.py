"""Keeps a run deterministic: within it, whoever asks the machine for time or chance gets an error instead.

Broker code takes time and random numbers as arguments. A call of ``time.time``, of the ``random`` module's global
generator, of ``os.urandom``, ``uuid.uuid4`` or the ``secrets`` module from inside a run would make two runs of one seed
differ, so it raises. Other threads (a progress display) are not concerned.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

FORBIDDEN: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")),
    (
        random,
        (
            "random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle", "getrandbits",
            "randbytes", "expovariate", "gauss", "normalvariate", "lognormvariate", "betavariate", "triangular", "seed",
        ),
    ),
    (os, ("urandom", "getrandom")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")),
)  # fmt: skip
"""Modules and the functions that a run must not call."""


class NondeterminismError(RuntimeError):
    """Code inside a simulated run asked the machine for time or chance."""


@contextmanager
def deterministic() -> Iterator[None]:
    """Within the block, on this thread, the functions of :data:`FORBIDDEN` raise :class:`NondeterminismError`.

    The block raises it again at its end, in case that the code in between had caught it.
    """
    thread = threading.get_ident()
    refused: list[str] = []
    with ExitStack() as stack:
        for module, names in FORBIDDEN:
            for name in names:
                stack.enter_context(mock.patch.object(module, name, _refusing(module, name, thread, refused)))
        yield
    if refused:
        raise NondeterminismError(refused[0])


def _refusing(module: ModuleType, name: str, thread: int, refused: list[str]) -> Callable[..., object]:
    original: Callable[..., object] = getattr(module, name)

    def refuse(*args: object, **kwargs: object) -> object:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        message = (
            f"{module.__name__}.{name} was called inside a simulated run; take the time or the random generator "
            "as an argument instead, or the run cannot be repeated"
        )
        refused.append(message)
        raise NondeterminismError(message)

    return refuse
