"""An embedded server with the HTTP API of toxiproxy, and a client for it and for the real one."""

from assay.faults.toxiproxy.client import ToxiproxyClient, ToxiproxyError
from assay.faults.toxiproxy.endpoint import Endpoint, toxiproxy_endpoint
from assay.faults.toxiproxy.server import DEFAULT_PORT, ToxiproxyServer, ToxiproxyThread

__all__ = [
    "DEFAULT_PORT",
    "Endpoint",
    "ToxiproxyClient",
    "ToxiproxyError",
    "ToxiproxyServer",
    "ToxiproxyThread",
    "toxiproxy_endpoint",
]
