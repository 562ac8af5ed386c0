"""CoAP (RFC 7252) over UDP: small devices publish to topics. Needs the extra ``coap``.

``exchanges`` is the message layer, sans-IO; ``bridge`` says what a request means; ``server`` has the socket. The codec
is aiocoap's; its server is not used, since it remembers every message for four minutes, however many come.
"""
