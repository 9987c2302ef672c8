"""A gateway whose clients come over MQTT. It joins the service that runs on the same data directory (`make up`).

python examples/mqtt/gateway.py --data roskva-data --broker 127.0.0.1:1883
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Final

from carrying import GONE, SAID, TOLD, Broker, MqttChannel

from roskva.config import Settings
from roskva.gateway.attached import Attachment
from roskva.gateway.service import Gateway

DEVICES_MAX: Final = 10_000


class Devices:
    """A channel at the gateway's port for every device that has spoken and is not gone."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._devices: dict[str, tuple[MqttChannel, Attachment]] = {}

    def heard(self, broker: Broker, topic: str, data: bytes) -> None:
        if topic.startswith(SAID):
            self._said(broker, topic.removeprefix(SAID), data)
        elif topic.startswith(GONE):
            self._gone(topic.removeprefix(GONE))

    def _said(self, broker: Broker, device: str, data: bytes) -> None:
        if device not in self._devices:
            if len(self._devices) >= DEVICES_MAX:
                self._make_room()
            channel = MqttChannel(broker, TOLD + device)
            self._devices[device] = channel, self._gateway.port.attach(channel)
            print(f"{device} is here", flush=True)
        self._devices[device][0].received(data)

    def _gone(self, device: str) -> None:
        if device in self._devices:
            _, attachment = self._devices.pop(device)
            attachment.closed()
            print(f"{device} is gone", flush=True)

    def _make_room(self) -> None:
        """The gateway closed those that were silent for long. If there is none, who came first must speak again."""
        silent = [device for device, (_, attachment) in self._devices.items() if not attachment.is_open]
        for device in silent or [next(iter(self._devices))]:
            self._gone(device)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("roskva-data"))
    parser.add_argument("--broker", default="127.0.0.1:1883")
    given = parser.parse_args()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    gateway = Gateway(Settings(data=given.data, listen="127.0.0.1:0"))
    await gateway.start()
    devices = Devices(gateway)
    broker = Broker(
        given.broker,
        f"roskva-{gateway.member_id}",
        [SAID + "+", GONE + "+"],
        heard=lambda topic, data: devices.heard(broker, topic, data),
        connected=lambda: print(f"carrying Roskva over MQTT at {given.broker}", flush=True),
    )
    broker.start()
    try:
        await stop.wait()
    finally:
        await broker.stop()
        await gateway.stop()


if __name__ == "__main__":
    asyncio.run(main())
