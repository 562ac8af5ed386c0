"""The embedded toxiproxy server: the API over HTTP/1.1, in a running event loop or in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote

import h11

from assay.faults.toxiproxy.api import Response, ToxiproxyApi

_LOG: Final = logging.getLogger("assay.toxiproxy")
DEFAULT_PORT: Final = 8474
MAX_BODY_BYTES: Final = 1_048_576
MAX_HEADER_BYTES: Final = 16_384
IDLE_TIMEOUT_S: Final = 30.0
"""A connection on which no whole request arrives for this long is closed."""
MAX_API_CONNECTIONS: Final = 128
_START_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 65_536


class _TooLargeError(Exception):
    """A request body above the limit."""


class ToxiproxyServer:
    """Serves the API on a loopback address of an event loop."""

    def __init__(self, *, seed: int = 0) -> None:
        self.api = ToxiproxyApi(seed=seed)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1; port 0 takes a free one. Raises :class:`OSError`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Close the API, every proxy and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self.api.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        try:
            if len(self._open) <= MAX_API_CONNECTIONS:
                while await self._exchange(connection, reader, writer):
                    pass
        except (h11.RemoteProtocolError, _TooLargeError) as error:
            await self._refuse(connection, writer, error)
        except OSError as error:  # TimeoutError is one
            _LOG.debug("API connection ended: %r", error)
        except asyncio.CancelledError:
            _LOG.debug("API connection ended: the server stops")
        finally:
            writer.close()

    async def _exchange(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request and its answer; False when the connection cannot serve another."""
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            request = await self._next_event(connection, reader)
            if not isinstance(request, h11.Request):
                return False
            body = await self._body(connection, reader)
        user_agent = next((value.decode("latin-1") for name, value in request.headers if name == b"user-agent"), "")
        method, target = request.method.decode("ascii"), unquote(request.target.decode("ascii"))
        await self._send(connection, writer, await self.api.handle(method, target, user_agent, body))
        if connection.our_state is h11.MUST_CLOSE:
            return False
        connection.start_next_cycle()
        return True

    @staticmethod
    async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
        while True:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            connection.receive_data(await reader.read(_READ_BYTES))

    async def _body(self, connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
        body = bytearray()
        while True:
            event = await self._next_event(connection, reader)
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY_BYTES:
                    raise _TooLargeError
            else:
                return bytes(body)

    @staticmethod
    async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, response: Response) -> None:
        headers = [("content-type", response.content_type)] if response.body else []
        if response.request_id:
            headers.append(("x-toxiproxy-request-id", response.request_id))
        if response.status != 204:
            headers.append(("content-length", str(len(response.body))))
        out = [connection.send(h11.Response(status_code=response.status, headers=headers))]
        if response.body:
            out.append(connection.send(h11.Data(data=response.body)))
        out.append(connection.send(h11.EndOfMessage()))
        writer.write(b"".join(part for part in out if part))
        await writer.drain()

    async def _refuse(self, connection: h11.Connection, writer: asyncio.StreamWriter, error: Exception) -> None:
        status = 413 if isinstance(error, _TooLargeError) else 400
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"body above {MAX_BODY_BYTES} bytes\n" if status == 413 else f"not HTTP: {error}\n"
            response = Response(status=status, body=text.encode(), content_type="text/plain; charset=utf-8")
            try:
                await self._send(connection, writer, response)
            except OSError as gone:
                _LOG.debug("API connection ended: %r", gone)


class ToxiproxyThread:
    """The server in a thread with its own event loop: ``with ToxiproxyThread() as server: server.url``."""

    def __init__(self, *, seed: int = 0, port: int = 0) -> None:
        self.url = ""
        self._server = ToxiproxyServer(seed=seed)
        self._port = port
        self._ready: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="toxiproxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(_START_TIMEOUT_S)
        self.url = self._server.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._server.start(self._port)
        except OSError as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            await self._stop.wait()
        finally:
            await self._server.stop()
