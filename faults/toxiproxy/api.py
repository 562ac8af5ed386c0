"""The HTTP API of toxiproxy: paths, codes and bodies as its clients know them, without any HTTP inside."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from assay.faults.toxiproxy.errors import ApiError, bad_request, missing_field, proxy_exists, proxy_not_found
from assay.faults.toxiproxy.proxy import Proxy
from assay.faults.toxiproxy.toxics import Stream, create_toxic, update_toxic
from assay.reference_broker.trace.described import described

VERSION: Final = "2.12.0+assay"
"""Version of the API we speak; the build says who speaks it."""
MAX_PROXIES: Final = 256
MAX_NAME_CHARS: Final = 200
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""

    status: int
    body: bytes = b""
    content_type: str = _JSON
    request_id: str = ""


class _ProxyBody(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    listen: str = ""
    upstream: str = ""
    enabled: bool = True


class _ProxyUpdate(msgspec.Struct, frozen=True, kw_only=True):
    listen: str | None = None
    upstream: str | None = None
    enabled: bool | None = None


def _json(status: int, data: Any) -> Response:
    return Response(status=status, body=msgspec.json.encode(data))


def _error(error: ApiError) -> Response:
    # http.Error of Go makes this text/plain although it is JSON; clients see it so.
    body = msgspec.json.encode({"error": str(error), "status": error.status}) + b"\n"
    return Response(status=error.status, body=body, content_type=_TEXT)


_Handler = Callable[["ToxiproxyApi", tuple[str, ...], bytes], Awaitable[Response]]


class ToxiproxyApi:
    """The collection of proxies and what the API does to it. Runs in one event loop."""

    def __init__(self, *, seed: int = 0) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._seed = seed
        self._numbers = itertools.count(1)

    async def handle(self, method: str, target: str, user_agent: str, body: bytes) -> Response:
        """Answer one request; never raises for anything a client can send."""
        request_id = f"assay-{next(self._numbers):08d}"
        response = await self._answer(method, target.partition("?")[0], user_agent, body)
        return msgspec.structs.replace(response, request_id=request_id)

    async def _answer(self, method: str, path: str, user_agent: str, body: bytes) -> Response:
        if user_agent.startswith("Mozilla/"):
            # A browser could be made to send requests here by any page it shows.
            return Response(status=403, body=b"User agent not allowed\n", content_type=_TEXT)
        known = False
        for pattern, handlers in _ROUTES:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            known = True
            handler = handlers.get(method)
            if handler is None:
                continue
            try:
                return await handler(self, match.groups(), body)
            except ApiError as error:
                return _error(error)
        if known:
            return Response(status=405, content_type=_TEXT)
        return Response(status=404, body=b"404 page not found\n", content_type=_TEXT)

    async def close(self) -> None:
        """Stop and forget every proxy."""
        for proxy in self.proxies.values():
            await proxy.stop()
        self.proxies.clear()

    def _proxy(self, name: str) -> Proxy:
        if name not in self.proxies:
            raise proxy_not_found()
        return self.proxies[name]

    async def _add(self, given: _ProxyBody) -> Proxy:
        if len(self.proxies) >= MAX_PROXIES or len(given.name) > MAX_NAME_CHARS:
            raise ApiError(400, f"at most {MAX_PROXIES} proxies, with names of at most {MAX_NAME_CHARS} characters")
        proxy = Proxy(given.name, given.listen or "127.0.0.1:0", given.upstream, seed=self._seed)
        if given.enabled:
            await proxy.start()
        self.proxies[given.name] = proxy
        return proxy

    async def list_proxies(self, names: tuple[str, ...], body: bytes) -> Response:
        return _json(200, {name: proxy.to_json() for name, proxy in self.proxies.items()})

    async def create_proxy(self, names: tuple[str, ...], body: bytes) -> Response:
        given: _ProxyBody = _decode(body, _ProxyBody | None) or _ProxyBody()
        for field in ("name", "upstream"):
            if not getattr(given, field):
                raise missing_field(field)
        if given.name in self.proxies:
            raise proxy_exists()
        return _json(201, (await self._add(given)).to_json())

    async def populate(self, names: tuple[str, ...], body: bytes) -> Response:
        done: list[dict[str, Any]] = []
        try:
            for given in _populated(body):
                proxy = await self._ensure(given)
                done.append(proxy.to_json())
        except ApiError as error:
            # Here the error shares a JSON body with the proxies that were made before it.
            return _json(error.status, {"error": str(error), "status": error.status, "proxies": done or None})
        return _json(201, {"proxies": done or None})

    async def _ensure(self, given: _ProxyBody) -> Proxy:
        existing = self.proxies.get(given.name)
        if existing is not None:
            if (existing.listen, existing.upstream) == (given.listen, given.upstream):
                return existing
            await existing.stop()
            del self.proxies[given.name]
        return await self._add(given)

    async def show_proxy(self, names: tuple[str, ...], body: bytes) -> Response:
        return _json(200, self._proxy(names[0]).to_json())

    async def update_proxy(self, names: tuple[str, ...], body: bytes) -> Response:
        proxy = self._proxy(names[0])
        given: _ProxyUpdate = _decode(body, _ProxyUpdate | None) or _ProxyUpdate()
        await proxy.update(
            listen=proxy.listen if given.listen is None else given.listen,
            upstream=proxy.upstream if given.upstream is None else given.upstream,
            enabled=proxy.enabled if given.enabled is None else given.enabled,
        )
        return _json(200, proxy.to_json())

    async def delete_proxy(self, names: tuple[str, ...], body: bytes) -> Response:
        await self._proxy(names[0]).stop()
        del self.proxies[names[0]]
        return Response(status=204)

    async def list_toxics(self, names: tuple[str, ...], body: bytes) -> Response:
        return _json(200, [toxic.to_json() for toxic in self._proxy(names[0]).toxics.values()])

    async def create_toxic(self, names: tuple[str, ...], body: bytes) -> Response:
        proxy = self._proxy(names[0])
        toxic = create_toxic(body)
        proxy.add_toxic(toxic)
        return _json(200, toxic.to_json())

    async def show_toxic(self, names: tuple[str, ...], body: bytes) -> Response:
        return _json(200, self._proxy(names[0]).get_toxic(names[1]).to_json())

    async def update_toxic(self, names: tuple[str, ...], body: bytes) -> Response:
        proxy = self._proxy(names[0])
        toxic = update_toxic(proxy.get_toxic(names[1]), body)
        proxy.change_toxic(toxic)
        return _json(200, toxic.to_json())

    async def delete_toxic(self, names: tuple[str, ...], body: bytes) -> Response:
        self._proxy(names[0]).remove_toxic(names[1])
        return Response(status=204)

    async def reset(self, names: tuple[str, ...], body: bytes) -> Response:
        for proxy in self.proxies.values():
            if not proxy.enabled:
                await proxy.start()
            for name in list(proxy.toxics):
                proxy.remove_toxic(name)
        return Response(status=204)

    async def version(self, names: tuple[str, ...], body: bytes) -> Response:
        return Response(
            status=200, body=b'{"version": "%s"}\n' % VERSION.encode(), content_type="application/json;charset=utf-8"
        )

    async def metrics(self, names: tuple[str, ...], body: bytes) -> Response:
        return Response(
            status=200, body="".join(self._metric_lines()).encode(), content_type="text/plain; version=0.0.4"
        )

    def _metric_lines(self) -> Iterator[str]:
        for kind in ("received", "sent"):
            metric = f"toxiproxy_proxy_{kind}_bytes_total"
            yield f"# HELP {metric} The total bytes {kind}.\n# TYPE {metric} counter\n"
            for proxy in self.proxies.values():
                for stream in Stream:
                    labels = {
                        "direction": stream.value,
                        "listener": proxy.listen,
                        "proxy": proxy.name,
                        "upstream": proxy.upstream,
                    }
                    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
                    yield f"{metric}{{{text}}} {proxy.bytes.get((kind, stream), 0)}\n"


def _populated(body: bytes) -> list[_ProxyBody]:
    wanted: list[_ProxyBody] = _decode(body, list[_ProxyBody] | None) or []
    for index, given in enumerate(wanted, 1):
        for field in ("name", "upstream"):
            if not getattr(given, field):
                raise missing_field(f"{field} at proxy {index}")
    return wanted


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=described(kind))
    except msgspec.DecodeError as error:
        raise bad_request(error) from error


_API = ToxiproxyApi
_ROUTES: Final[tuple[tuple[re.Pattern[str], dict[str, _Handler]], ...]] = (
    (re.compile("/proxies"), {"GET": _API.list_proxies, "POST": _API.create_proxy}),
    (re.compile("/populate"), {"POST": _API.populate}),
    (
        re.compile("/proxies/([^/]+)"),
        {
            "GET": _API.show_proxy,
            "PATCH": _API.update_proxy,
            "POST": _API.update_proxy,
            "DELETE": _API.delete_proxy,
        },
    ),
    (re.compile("/proxies/([^/]+)/toxics"), {"GET": _API.list_toxics, "POST": _API.create_toxic}),
    (
        re.compile("/proxies/([^/]+)/toxics/([^/]+)"),
        {
            "GET": _API.show_toxic,
            "PATCH": _API.update_toxic,
            "POST": _API.update_toxic,
            "DELETE": _API.delete_toxic,
        },
    ),
    (re.compile("/reset"), {"POST": _API.reset}),
    (re.compile("/version"), {"GET": _API.version}),
    (re.compile("/metrics"), {"GET": _API.metrics}),
)
