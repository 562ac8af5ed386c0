"""Client of a toxiproxy server: toxiproxy-python where it serves, our own calls for what it lacks.

toxiproxy-python 0.1.1 cannot update a toxic and answers a server's 5xx with ``KeyError``; here every failure is a
:class:`ToxiproxyError`. It keeps the server's address in class attributes: one process speaks to one server at a time.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlsplit

import toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

HTTP_TIMEOUT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 16 * 1_048_576


class ToxiproxyError(Exception):
    """The server refused, failed, or cannot be reached. ``status`` is the HTTP status, 0 when there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


_STATUS: Final = {ProxyExists: 409, NotFound: 404, InvalidToxic: 400}


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (ProxyExists, NotFound, InvalidToxic) as error:
        raise ToxiproxyError(f"{what}: {_text(error.args[0])}", _STATUS[type(error)]) from error
    except KeyError as error:
        # create() looks for the new proxy's name in the answer without a look at the status.
        raise ToxiproxyError(f"{what}: the server failed (is the listen address in use?)", 500) from error
    except OSError as error:  # requests' exceptions are
        raise ToxiproxyError(f"{what}: {error}") from error


def _text(answer: object) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    try:
        data = json.loads(text)
    except ValueError:
        return text
    return str(data["error"]) if isinstance(data, dict) and "error" in data else text


class ToxiproxyClient:
    """What the fault runner needs of a toxiproxy server at ``url``. Calls block; use a thread beside an event loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            message = f"{url!r} is not the address of a toxiproxy server, such as http://127.0.0.1:8474"
            raise ToxiproxyError(message)
        self.url = url
        self._host, self._port = parts.hostname, parts.port or 8474
        self._api = toxiproxy.Toxiproxy()
        self._api.update_api_consumer(self._host, self._port)
        self._proxies: dict[str, Any] = {}

    def version(self) -> str:
        """Version that the server reports; servers before 2.7.0 answer with bare text."""
        body = self._call("GET", "/version")
        try:
            return str(json.loads(body)["version"])
        except (ValueError, KeyError, TypeError):
            return body.decode(errors="replace").strip()

    def create(self, name: str, upstream: str) -> tuple[str, int]:
        """Make a proxy on a free loopback port; returns its host and port. A proxy of that name is replaced."""
        with _translated(f"create proxy {name!r}"):
            stale = self._api.get_proxy(name)
            if stale is not None:
                self._api.destroy(stale)
            proxy = self._api.create(upstream=upstream, name=name)
        self._proxies[name] = proxy
        host, _, port = proxy.listen.rpartition(":")
        return host, int(port)

    def destroy(self, name: str) -> None:
        """Delete a proxy that this client made."""
        proxy = self._proxies.pop(name, None)
        if proxy is not None:
            with _translated(f"delete proxy {name!r}"):
                proxy.destroy()

    def add_toxic(
        self, proxy: str, name: str, kind: str, stream: str, attributes: dict[str, int | float], toxicity: float = 1.0
    ) -> None:
        """Add a toxic. Raises :class:`ToxiproxyError` with status 400 for a type that the server does not know."""
        target = self._proxies[proxy]
        with _translated(f"add {kind} to {proxy!r}"):
            target.add_toxic(name=name, type=kind, stream=stream, toxicity=toxicity, attributes=attributes)

    def update_toxic(
        self, proxy: str, name: str, attributes: dict[str, int | float], toxicity: float | None = None
    ) -> None:
        """Change a toxic in place: PATCH, or POST where the server is older than 2.6.0."""
        body: dict[str, Any] = {"attributes": attributes}
        if toxicity is not None:
            body["toxicity"] = toxicity
        path = f"/proxies/{quote(proxy, safe='')}/toxics/{quote(name, safe='')}"
        try:
            self._call("PATCH", path, body)
        except ToxiproxyError as error:
            if error.status != http.HTTPStatus.METHOD_NOT_ALLOWED:
                raise
            self._call("POST", path, body)

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Remove a toxic."""
        target = self._proxies[proxy]
        with _translated(f"remove {name!r} from {proxy!r}"):
            target.destroy_toxic(name)

    def cut_connections(self, proxy: str) -> None:
        """Drop every connection of a proxy: disable it, and enable it again."""
        target = self._proxies[proxy]
        with _translated(f"cut the connections of {proxy!r}"):
            target.disable()
            target.enable()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"} if body is not None else {},
            )
            answer = connection.getresponse()
            data = answer.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            message = f"{method} {self.url}{path}: {error}"
            raise ToxiproxyError(message) from error
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            message = f"{method} {path}: {_text(data)}"
            raise ToxiproxyError(message, answer.status)
        return data
