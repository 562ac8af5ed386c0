"""Sockets, threads and the clock around a :class:`BrokerNode`.

Newcomers (``core.newcomers``). Connections without CONNECT yet, and TLS handshakes, are bounded in number: the oldest
of the address with most of them gives way, also where a listener or the process has no connection left, so that who
says nothing keeps nobody out.

Listeners (``server.listeners``) stack TLS (the event loop's) and ``server.websocket_layer`` (around the sans-IO
``server.websocket``) under the same protocol object; ``server.tls`` loads and checks certificates at start;
``server.readiness`` proves each listener with a client of its own. Syncs run in ``server.sync_threads``.

A forked child of an embedded broker has ``/dev/null`` in the place of its lock, files (``storage.own_descriptors``) and
sockets, and its calls are refused; the broker goes on in the parent. One that nobody holds any more ends.
"""
