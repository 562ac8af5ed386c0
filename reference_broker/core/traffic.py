"""Counters of what the broker took and gave: added to once a chunk, run or turn where that is possible."""

from __future__ import annotations


class Traffic:
    """Totals since the start. Payload bytes are those of PUBLISH packets, other bytes are everything on the wire."""

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.publishes_received = 0
        self.payload_bytes_received = 0
        self.publishes_sent = 0
        self.payload_bytes_sent = 0
        self.dropped = 0
        """Messages that a client was too slow for, or would not take, or that were over a limit."""
        self.connected = 0
        """Sessions with a connection, now; and the most there ever were."""
        self.max_connected = 0
        self.subscriptions = 0
        """Now, shared ones included."""
        self.shared_subscriptions = 0
        self.unread_bytes = 0
        """Output that clients have not taken, of all connections, as their drivers saw it last."""
        self.waiting_bytes = 0
        """Input that has come and waits: for a later turn, or for the publish rate of its client."""
        self.large_bytes = 0
        """Of QoS 0 messages that were sent in this turn although clients leave too much unread."""
        self.turn_end = 0
        """What ``payload_bytes_sent`` may come to in this turn: large messages wait for the next one then."""

    def client_connected(self) -> None:
        self.connected += 1
        if self.connected > self.max_connected:
            self.max_connected = self.connected

    def client_disconnected(self) -> None:
        self.connected -= 1

    def subscribed(self, *, shared: bool) -> None:
        self.subscriptions += 1
        self.shared_subscriptions += shared

    def unsubscribed(self, *, shared: bool) -> None:
        self.subscriptions -= 1
        self.shared_subscriptions -= shared
