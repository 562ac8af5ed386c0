"""The console: one page for browsers, as it is served; ``routes.console`` serves it. Nothing builds it, and it asks
nobody but the broker that it came from.

``app.js`` is the frame (address, keys, who asks), ``api.js`` asks the broker, ``dom.js`` makes elements, always of text
and never of markup, ``charts.js`` draws; ``views_*.js`` have a function for each view. A view gets a context, puts its
elements into it once and tells what to ask for: what one types outlives every answer.
"""
