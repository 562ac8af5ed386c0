"""HTTP: routes, and what stands in front of them. Needs the extra ``http``; imported only where a listener speaks it.

``server.HttpServer`` is made once for a broker and gives each listener its protocol (uvicorn's, in the broker's own
event loop, with limits of time that it does not have: ``protocol``). ``guard`` sees every request before it is routed:
host, origin, path, body, who asks. ``areas`` ties a route to its types: requests and answers are msgspec structs, often
the engine's own, and the OpenAPI document is made of them (``openapi``). ``routes/`` has the routes by area; each asks
``api`` for what is done in the engine's turns, and for who may. ``app`` puts it together.

A route: take an :class:`areas.Area`, write a coroutine that takes a ``Call``, its parameters and perhaps a ``Body``,
and whose type says what it answers; name the scope it needs and the errors it may meet; add the area to ``app.AREAS``.
"""
