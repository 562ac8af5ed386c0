"""Which broker is meant, and who asks: options, else the environment, else the context in use, else this machine's.

Contexts are kept in ``assay/contexts.yaml`` below ``$XDG_CONFIG_HOME`` (``~/.config``), readable by their user alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
import yaml

from assay.reference_broker.clients.http_client import HttpQueues
from assay.reference_broker.commands.ends import UsageError, say
from assay.reference_broker.trace.described import described

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
_OPTIONS: Final = ("token", "user", "ca")
"""That stand for what the context has."""


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A broker, and who asks it."""

    server: str = DEFAULT_SERVER
    token: str = ""
    user: str = ""
    password: str = ""
    ca: str = ""
    """File of the authority that signed the broker's certificate."""
    certificate: str = ""
    """File of one's own certificate, for brokers that know users by it."""
    key: str = ""
    """File of its key."""

    @property
    def has_secrets(self) -> bool:
        return bool(self.token or self.password or ":" in self.user)


class Contexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The file."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Raises :class:`UsageError`."""
        if name not in self.contexts:
            there = ", ".join(self.contexts) or "none yet: assay context set makes one"
            raise UsageError(f"there is no context {name!r}; there are: {there}")
        return self.contexts[name]


def file() -> Path:
    """Where contexts are kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "assay" / "contexts.yaml"


def load() -> Contexts:
    """Raises :class:`UsageError` for a file that is none."""
    path = file()
    try:
        with path.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            found = msgspec.convert(yaml.safe_load(opened) or {}, described(Contexts))
    except FileNotFoundError:
        return Contexts()
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if stat.S_IMODE(mode) & 0o077 and any(each.has_secrets for each in found.contexts.values()):
        say(f"warning: others may read the secrets in {path}: chmod 600 {path}")
    return found


def save(contexts: Contexts) -> None:
    """In one step, so that whoever reads meanwhile has the old file or the new one."""
    path = file().resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Such files are made with mode 0600.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            yaml.safe_dump(msgspec.to_builtins(contexts), opened, sort_keys=False, allow_unicode=True)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def resolve(options: Mapping[str, Any]) -> Context:
    """What holds for a command. Credentials of a context go to its server only. Raises :class:`UsageError`."""
    contexts = load()
    name = options["context"] or contexts.current
    kept = contexts.named(name) if name else Context()
    server = options["server"] or kept.server
    if server != kept.server:
        kept = Context()
    given = {field: options[field] for field in _OPTIONS if options[field]}
    if password := os.environ.get("ASSAY_PASSWORD"):
        given["password"] = password
    if "token" in given or "user" in given:
        kept = msgspec.structs.replace(kept, token="", user="", password="")
    return msgspec.structs.replace(kept, server=server, **given)


def connect(context: Context, timeout_s: float) -> HttpQueues:
    """Raises :class:`UsageError`; nothing is sent yet."""
    user, _, password = context.user.partition(":")
    password = password or context.password
    if user and not password and not context.token and not context.certificate and sys.stdin.isatty():
        password = typer.prompt(f"password of {user}", hide_input=True, err=True)
    try:
        return HttpQueues(
            context.server,
            username=user,
            password=password,
            token=context.token,
            authority=Path(context.ca).read_bytes() if context.ca else None,
            certificate=(context.certificate, context.key or context.certificate) if context.certificate else None,
            client_id=f"assay-{os.getpid()}",
            timeout_s=timeout_s,
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"{context.ca} holds no certificates in PEM") from error
