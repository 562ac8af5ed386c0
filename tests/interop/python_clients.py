"""Three Python client libraries, as their users use them, behind one face: paho-mqtt, aiomqtt and gmqtt."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import aiomqtt
import gmqtt
import msgspec
import paho.mqtt.client as paho
from gmqtt.storage import PersistentStorage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

WAIT_S = 20.0
TCP, TLS, WEBSOCKET, SECURE_WEBSOCKET = "tcp", "tls", "websocket", "secure websocket"


class RefusedError(Exception):
    """CONNACK said no."""

    def __init__(self, code: int) -> None:
        super().__init__(hex(code))
        self.code = code


class Place(NamedTuple):
    """A listener."""

    transport: str
    port: int
    tls: ssl.SSLContext | None = None


class LastWill(NamedTuple):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a client connects with."""

    client_id: str
    version: int
    clean: bool = True
    expiry_s: int = 0
    username: str | None = None
    password: str | None = None
    will: LastWill | None = None
    receive_maximum: int | None = None


class Received(NamedTuple):
    """A message that arrived; ``properties`` under their names in the standard."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]


class InteropClient(ABC):
    """A client library; one instance is one connection. Every wait is bounded."""

    transports: ClassVar[tuple[str, ...]]

    def __init__(self, place: Place, options: Options) -> None:
        self.place = place
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.messages: asyncio.Queue[Received] = asyncio.Queue()
        self._lost: asyncio.Future[int | None] = self.loop.create_future()

    async def __aenter__(self) -> InteropClient:
        await asyncio.wait_for(self.connect(), WAIT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.wait_for(self.disconnect(), WAIT_S)

    @abstractmethod
    async def connect(self) -> None:
        """Raises :class:`RefusedError`."""

    @property
    @abstractmethod
    def session_present(self) -> bool | None:
        """As CONNACK said; None = the library does not tell."""

    @abstractmethod
    async def subscribe(self, topic_filter: str, qos: int = 0, *, identifier: int = 0, no_local: bool = False) -> int:
        """The code of the SUBACK."""

    @abstractmethod
    async def unsubscribe(self, topic_filter: str) -> None:
        """Returns with the UNSUBACK."""

    @abstractmethod
    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any
    ) -> int | None:
        """Returns once acknowledged; with the reason code, where the library tells it."""

    @abstractmethod
    async def disconnect(self) -> None:
        """As the standard has it; harmless when the connection is gone."""

    @abstractmethod
    def drop(self) -> None:
        """The network fails: no DISCONNECT."""

    async def next(self) -> Received:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def lost(self) -> int | None:
        """Waits for the broker to end the connection; the DISCONNECT's reason code, where there is one."""
        return await asyncio.wait_for(asyncio.shield(self._lost), WAIT_S)

    def _note_lost(self, code: int | None) -> None:
        if not self._lost.done():
            self._lost.set_result(code)


# -- paho-mqtt -------------------------------------------------------------------------------------------------------

_PAHO_NAMES = {
    "payload_format_indicator": "PayloadFormatIndicator",
    "message_expiry_interval": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "user_property": "UserProperty",
    "topic_alias": "TopicAlias",
    "subscription_identifier": "SubscriptionIdentifier",
}


def _paho_properties(kind: int, values: dict[str, Any]) -> Properties | None:
    properties = Properties(kind)
    for name, value in values.items():
        setattr(properties, _PAHO_NAMES[name], value)
    return properties if values else None


def _from_paho(properties: Properties | None) -> dict[str, Any]:
    if properties is None:
        return {}
    found = {name: getattr(properties, theirs, None) for name, theirs in _PAHO_NAMES.items()}
    return {name: value for name, value in found.items() if value is not None}


def _paho_connect_properties(options: Options) -> Properties | None:
    if options.version != paho.MQTTv5:
        return None
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = options.expiry_s
    if options.receive_maximum is not None:
        properties.ReceiveMaximum = options.receive_maximum
    return properties


def _code(reason: ReasonCode | int) -> int:
    return reason if isinstance(reason, int) else int(reason.value)


class PahoClient(InteropClient):
    """Paho with its network thread."""

    transports = (TCP, TLS, WEBSOCKET, SECURE_WEBSOCKET)

    async def connect(self) -> None:
        options, place = self.options, self.place
        client = self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            clean_session=options.clean if options.version != paho.MQTTv5 else None,
            protocol=options.version,
            transport="websockets" if place.transport in (WEBSOCKET, SECURE_WEBSOCKET) else "tcp",
            reconnect_on_failure=False,
        )
        if place.tls is not None:
            client.tls_set_context(place.tls)
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if options.will is not None:
            client.will_set(*options.will)
        answered: asyncio.Future[tuple[bool, int]] = self.loop.create_future()
        self._pending: dict[int, asyncio.Future[int]] = {}

        def here(call: Any, *arguments: Any) -> None:
            self.loop.call_soon_threadsafe(call, *arguments)

        client.on_connect = lambda _c, _d, flags, reason, _p: here(
            _settle, answered, (bool(flags.session_present), _code(reason))
        )
        client.on_message = lambda _c, _d, message: here(self.messages.put_nowait, _received(message))
        client.on_publish = lambda _c, _d, mid, reason, _p: here(self._acknowledged, mid, _code(reason))
        client.on_subscribe = lambda _c, _d, mid, reasons, _p: here(self._acknowledged, mid, _code(reasons[0]))
        client.on_unsubscribe = lambda _c, _d, mid, _reasons, _p: here(self._acknowledged, mid, 0)
        client.on_disconnect = lambda _c, _d, flags, reason, _p: here(
            self._note_lost, _code(reason) if flags.is_disconnect_packet_from_server else None
        )
        clean_start = options.clean if options.version == paho.MQTTv5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        client.connect("127.0.0.1", place.port, clean_start=clean_start, properties=_paho_connect_properties(options))
        client.loop_start()
        self._present, code = await answered
        if code:
            client.loop_stop()
            raise RefusedError(code)

    def _acknowledged(self, mid: int, code: int) -> None:
        _settle(self._waiting(mid), code)

    def _waiting(self, mid: int) -> asyncio.Future[int]:
        return self._pending.setdefault(mid, self.loop.create_future())

    async def _answer(self, mid: int | None) -> int:
        assert mid is not None
        code = await asyncio.wait_for(self._waiting(mid), WAIT_S)
        del self._pending[mid]
        return code

    @property
    def session_present(self) -> bool | None:
        return self._present

    async def subscribe(self, topic_filter: str, qos: int = 0, *, identifier: int = 0, no_local: bool = False) -> int:
        if self.options.version != paho.MQTTv5:
            return await self._answer(self._client.subscribe(topic_filter, qos)[1])
        given = {"subscription_identifier": identifier} if identifier else {}
        chosen = SubscribeOptions(qos=qos, noLocal=no_local)
        properties = _paho_properties(PacketTypes.SUBSCRIBE, given)
        return await self._answer(self._client.subscribe(topic_filter, options=chosen, properties=properties)[1])

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._answer(self._client.unsubscribe(topic_filter)[1])

    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any
    ) -> int | None:
        given = _paho_properties(PacketTypes.PUBLISH, properties)
        return await self._answer(self._client.publish(topic, payload, qos, retain, given).mid)

    async def disconnect(self) -> None:
        self._client.disconnect()
        await self.loop.run_in_executor(None, self._client.loop_stop)

    def drop(self) -> None:
        _shut(self._client.socket())


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _shut(transport: Any) -> None:
    """End a socket, or paho's wrapper around one, below the protocol."""
    plain = getattr(transport, "_socket", transport)
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)


def _received(message: paho.MQTTMessage) -> Received:
    return Received(message.topic, message.payload, message.qos, message.retain, _from_paho(message.properties))


# -- aiomqtt ---------------------------------------------------------------------------------------------------------


class AiomqttClient(InteropClient):
    """aiomqtt: paho's protocol code on asyncio."""

    transports = (TCP, TLS, WEBSOCKET, SECURE_WEBSOCKET)

    async def connect(self) -> None:
        options, place = self.options, self.place
        five = options.version == paho.MQTTv5
        self._client = aiomqtt.Client(
            "127.0.0.1",
            place.port,
            identifier=options.client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
            clean_session=None if five else options.clean,
            clean_start=options.clean if five else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=_paho_connect_properties(options),
            username=options.username,
            password=options.password,
            will=aiomqtt.Will(*options.will) if options.will is not None else None,
            transport="websockets" if place.transport in (WEBSOCKET, SECURE_WEBSOCKET) else "tcp",
            tls_context=place.tls,
            timeout=WAIT_S,
        )
        try:
            await self._client.__aenter__()
        except aiomqtt.MqttCodeError as error:
            raise RefusedError(_code(error.rc or 0)) from error
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self._client.messages:
                payload = message.payload
                properties = _from_paho(message.properties)
                self.messages.put_nowait(
                    Received(message.topic.value, payload, message.qos, message.retain, properties)
                )
        except aiomqtt.MqttError:
            self._note_lost(await self._reason())

    async def _reason(self) -> int | None:
        """Iteration does not say why it ended; the next call does."""
        try:
            await self._client.publish("interop/lost")
        except aiomqtt.MqttError as error:
            cause = error.__cause__
            return _code(cause.rc or 0) if isinstance(cause, aiomqtt.MqttCodeError) else None
        return None

    @property
    def session_present(self) -> bool | None:
        return None

    async def subscribe(self, topic_filter: str, qos: int = 0, *, identifier: int = 0, no_local: bool = False) -> int:
        if self.options.version != paho.MQTTv5:
            codes = await self._client.subscribe(topic_filter, qos)
        else:
            given = {"subscription_identifier": identifier} if identifier else {}
            codes = await self._client.subscribe(
                topic_filter,
                options=SubscribeOptions(qos=qos, noLocal=no_local),
                properties=_paho_properties(PacketTypes.SUBSCRIBE, given),
            )
        return _code(codes[0])

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._client.unsubscribe(topic_filter)

    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any
    ) -> int | None:
        given = _paho_properties(PacketTypes.PUBLISH, properties)
        await self._client.publish(topic, payload, qos, retain, properties=given)
        return None

    async def disconnect(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with contextlib.suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)

    def drop(self) -> None:
        _shut(self._client._client.socket())


# -- gmqtt -----------------------------------------------------------------------------------------------------------

_GMQTT_NAMES = {"payload_format_indicator": "payload_format_id"}
_NEVER_RECONNECT = -2
"""``stop_reconnect()`` sets 0, which still allows one attempt; -1 stands for any number."""


class GmqttClient(InteropClient):
    """gmqtt: its own protocol code on asyncio; no WebSocket."""

    transports = (TCP, TLS)

    async def connect(self) -> None:
        options, place = self.options, self.place
        connect_properties: dict[str, Any] = {}
        if options.version == paho.MQTTv5:
            connect_properties["session_expiry_interval"] = options.expiry_s
            if options.receive_maximum is not None:
                connect_properties["receive_maximum"] = options.receive_maximum
        will = options.will
        self._unacknowledged = PersistentStorage()
        client = self._client = gmqtt.Client(
            options.client_id,
            clean_session=options.clean,
            will_message=gmqtt.Message(will.topic, will.payload, will.qos, will.retain) if will is not None else None,
            persistent_storage=self._unacknowledged,
            **connect_properties,
        )
        client.set_config({"reconnect_retries": _NEVER_RECONNECT})
        if options.username is not None:
            client.set_auth_credentials(options.username, options.password)
        self._pending: dict[int, asyncio.Future[int]] = {}
        self._present = False
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_subscribe = lambda _client, mid, codes, _properties: self._acknowledged(mid, codes[0])
        client.on_unsubscribe = lambda _client, mid, *_codes: self._acknowledged(mid, 0)
        client.on_disconnect = self.on_disconnect
        try:
            await client.connect("127.0.0.1", place.port, ssl=place.tls or False, version=options.version)
        except gmqtt.mqtt.handler.MQTTConnectError as error:
            raise RefusedError(error._code) from error

    def _on_connect(self, _client: gmqtt.Client, flags: int, _code: int, _properties: dict[str, Any]) -> None:
        self._present = bool(flags)

    def _on_message(
        self, _client: gmqtt.Client, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        found = {name: value for name, value in properties.items() if name not in ("dup", "retain")}
        for ours, theirs in _GMQTT_NAMES.items():
            if theirs in found:
                found[ours] = found.pop(theirs)
        many = ("user_property", "subscription_identifier")
        single = {name: value if name in many else value[0] for name, value in found.items()}
        self.messages.put_nowait(Received(topic, payload, qos, bool(properties.get("retain")), single))
        return 0

    def on_disconnect(self, _client: gmqtt.Client, packet: Any, _error: Exception | None = None) -> None:
        self._note_lost(packet[0] if isinstance(packet, bytes) and packet else None)

    def _acknowledged(self, mid: int, code: int) -> None:
        _settle(self._pending.setdefault(mid, self.loop.create_future()), code)

    async def _answer(self, mid: int) -> int:
        code = await asyncio.wait_for(self._pending.setdefault(mid, self.loop.create_future()), WAIT_S)
        del self._pending[mid]
        return code

    @property
    def session_present(self) -> bool | None:
        return self._present

    async def subscribe(self, topic_filter: str, qos: int = 0, *, identifier: int = 0, no_local: bool = False) -> int:
        given = {"subscription_identifier": identifier} if identifier else {}
        return await self._answer(self._client.subscribe(topic_filter, qos, no_local, **given))

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._answer(self._client.unsubscribe(topic_filter))

    async def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any
    ) -> int | None:
        given = {_GMQTT_NAMES.get(name, name): value for name, value in properties.items()}
        self._client.publish(topic, payload, qos, retain, **given)
        await asyncio.wait_for(self._unacknowledged.wait_empty(), WAIT_S)
        return None

    async def disconnect(self) -> None:
        await self._client.disconnect()

    def drop(self) -> None:
        self._client._connection._transport.abort()


CLIENTS: dict[str, type[InteropClient]] = {"paho": PahoClient, "aiomqtt": AiomqttClient, "gmqtt": GmqttClient}
