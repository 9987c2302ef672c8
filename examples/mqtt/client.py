"""Shows an object's versions as they come, over MQTT: this program has no connection but the one to its broker.

python examples/mqtt/client.py --broker 127.0.0.1:1883 --device lamp-7 hello
"""

from __future__ import annotations

import argparse
import asyncio

from carrying import GONE, SAID, TOLD, Broker, MqttChannel

import roskva


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("object")
    parser.add_argument("--broker", default="127.0.0.1:1883")
    parser.add_argument("--device", required=True, help="its name at the broker, and at Roskva")
    given = parser.parse_args()
    device = given.device
    broker = Broker(
        given.broker,
        device,
        [TOLD + device],
        heard=lambda topic, data: channel.received(data),
        connected=lambda: channel.interrupted(),  # what was sent before is lost: speak again
    )
    channel = MqttChannel(broker, SAID + device, GONE + device)
    broker.start(last_will=GONE + device)
    try:
        async with roskva.Client(application="demo", device=device, channel=channel) as client:
            await client.register(given.object)
            async for notification in client:
                print(notification.object, "unknown" if notification.version is None else notification.version, flush=True)
    finally:
        await broker.stop()


if __name__ == "__main__":
    asyncio.run(main())
