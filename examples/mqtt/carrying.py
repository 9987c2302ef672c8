"""Roskva over MQTT: one end of a channel for each device, over one connection to a broker.

A device publishes what it says to `roskva/said/DEVICE`, and is told what the gateway says at `roskva/told/DEVICE`. That it is gone is
published to `roskva/gone/DEVICE`: by itself when it closes, by the broker, as its last will, when it is cut off. Quality of service is
0 throughout: Roskva repeats what gets lost.

Who may publish and subscribe which topic is the broker's to decide; give each device those with its own name only. For mosquitto:
`pattern write roskva/said/%c`, `pattern write roskva/gone/%c`, `pattern read roskva/told/%c`, the device being the client id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

import roskva

SAID: Final = "roskva/said/"
TOLD: Final = "roskva/told/"
GONE: Final = "roskva/gone/"

Heard = Callable[[str, bytes], None]


class Broker:
    """A connection to a broker that lasts: paho makes it again by itself, in a thread of its own."""

    def __init__(self, address: str, name: str, topics: list[str], heard: Heard, connected: Callable[[], None]) -> None:
        host, _, port = address.partition(":")
        self._address = host, int(port or 1883)
        self._topics = topics
        self._heard = heard
        self._connected = connected
        self._loop = asyncio.get_running_loop()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.reconnect_delay_set(min_delay=1, max_delay=60)
        self._client.max_queued_messages_set(1_000)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    def start(self, last_will: str | None = None) -> None:
        if last_will is not None:
            self._client.will_set(last_will)
        self._client.connect_async(*self._address, keepalive=30)
        self._client.loop_start()

    async def stop(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def publish(self, topic: str, data: bytes) -> None:
        self._client.publish(topic, data)  # does not block; without a connection it is dropped, which a channel may do

    # In paho's thread: everything is passed on to the event loop's.

    def _on_connect(self, client: Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if not reason.is_failure:
            client.subscribe([(topic, 0) for topic in self._topics])
            self._loop.call_soon_threadsafe(self._connected)

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self._loop.call_soon_threadsafe(self._heard, message.topic, bytes(message.payload))


class MqttChannel(roskva.Channel):
    """One end: what is sent is published to a topic. Whoever reads the connection calls `received`."""

    def __init__(self, broker: Broker, topic: str, gone: str = "") -> None:
        self._broker = broker
        self._topic = topic
        self._gone = gone

    def send(self, data: bytes) -> None:
        self._broker.publish(self._topic, data)

    def ended(self) -> None:
        if self._gone:
            self._broker.publish(self._gone, b"")
