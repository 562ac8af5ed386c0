"""The data types of the wire (MQTT 3.1.1 section 1.5, 5.0 section 1.5): reading with bounds, and writing."""

from __future__ import annotations

from assay.reference_broker.mqtt.wire.errors import malformed

MAX_VARIABLE_INTEGER = 268_435_455


def encode_variable_integer(value: int) -> bytes:
    """1 to 4 bytes, as few as possible (5.0 1.5.5-1)."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        if not value:
            out.append(digit)
            return bytes(out)
        out.append(digit | 0x80)


def encode_string(text: str) -> bytes:
    """Length-prefixed UTF-8. Raises :class:`ValueError` over 65,535 bytes."""
    return encode_binary(text.encode())


def encode_binary(data: bytes) -> bytes:
    """Length-prefixed bytes. Raises :class:`ValueError` over 65,535 bytes."""
    length = len(data)
    if length > 65_535:
        raise ValueError(f"a string or binary field holds at most 65535 bytes, not {length}")
    return length.to_bytes(2, "big") + data


class Reader:
    """Reads fields of one packet; running past its end is a malformed packet."""

    __slots__ = ("_data", "_end", "_position", "version")

    def __init__(self, data: bytes, position: int, end: int, version: int) -> None:
        self._data = data
        self._position = position
        self._end = end
        self.version = version

    @property
    def remaining(self) -> int:
        return self._end - self._position

    def _take(self, length: int) -> int:
        start = self._position
        if start + length > self._end:
            raise malformed("the packet ends within a field", self.version, "MQTT-4.8.0-1", "MQTT-4.13.1-1")
        self._position = start + length
        return start

    def section(self, length: int) -> Reader:
        """A reader of the next ``length`` bytes, which this one skips."""
        start = self._take(length)
        return Reader(self._data, start, start + length, self.version)

    def byte(self) -> int:
        return self._data[self._take(1)]

    def two_bytes(self) -> int:
        start = self._take(2)
        data = self._data
        return data[start] << 8 | data[start + 1]

    def four_bytes(self) -> int:
        start = self._take(4)
        return int.from_bytes(self._data[start : start + 4], "big")

    def variable_integer(self) -> int:
        position = self._position
        if position < self._end and (first := self._data[position]) < 0x80:
            self._position = position + 1
            return first
        value = 0
        for shift in (0, 7, 14, 21):
            digit = self.byte()
            value |= (digit & 0x7F) << shift
            if digit < 0x80:
                if shift and not digit:
                    raise malformed(
                        "a variable byte integer uses more bytes than it needs",
                        self.version,
                        "MQTT-4.8.0-1",
                        "MQTT-1.5.5-1",
                    )
                return value
        raise malformed("a variable byte integer is longer than 4 bytes", self.version, "MQTT-4.8.0-1", "MQTT-4.13.1-1")

    def binary(self) -> bytes:
        length = self.two_bytes()
        start = self._take(length)
        return self._data[start : start + length]

    def string(self) -> str:
        """UTF-8 without surrogates (refused by the decoder) and without U+0000."""
        data, position = self._data, self._position
        start = position + 2
        if start <= self._end:
            end = start + (data[position] << 8 | data[position + 1])
            if end <= self._end:
                self._position = end
                return decode_string(data[start:end], self.version)
        self._position = self._end
        return decode_string(self.binary(), self.version)

    def rest(self) -> bytes:
        start = self._take(self.remaining)
        return self._data[start : self._end]


def decode_string(data: bytes, version: int) -> str:
    """A UTF-8 encoded string's text. Raises :class:`MalformedPacketError`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise malformed("a string is not well-formed UTF-8", version, "MQTT-1.5.3-1", "MQTT-1.5.4-1") from error
    if "\0" in text:
        raise malformed("a string contains U+0000", version, "MQTT-1.5.3-2", "MQTT-1.5.4-2")
    return text
