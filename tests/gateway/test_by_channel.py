"""Connections are counted by what carries them, for who wants to know how many of their clients need long polls."""

from __future__ import annotations

import aiohttp

import roskva
from roskva.client.choice import LONG_POLL, WEBSOCKET
from roskva.client.shell import Client
from roskva.gateway.service import Gateway
from tests.gateway.test_channels import QUICK_CLIENT, until


class Near(roskva.Channel):
    """Carries messages to the other end at once."""

    far: roskva.Channel

    def send(self, data: bytes) -> None:
        self.far.received(data)


async def test_connections_are_counted_by_what_carries_them(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    near, far = Near(), Near()
    near.far, far.far = far, near
    attachment = gateway.port.attach(far)
    async with (
        Client(gateway.url, application="demo", channel=WEBSOCKET, config=QUICK_CLIENT),
        Client(gateway.url, application="demo", channel=LONG_POLL, config=QUICK_CLIENT),
        Client(gateway.url, application="demo", channel=LONG_POLL, config=QUICK_CLIENT),
        Client(application="demo", channel=near, config=QUICK_CLIENT),
    ):
        await until(lambda: gateway.port.by_channel == {"websocket": 1, "polled": 2, "attached": 1})
        async with http.get(gateway.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        counted = {"websocket": 1.0, "polled": 2.0, "attached": 1.0}
        here = f'{{gateway="{gateway.name}"}}'
        assert {f"roskva_connections_{channel}{here} {count}" for channel, count in counted.items()} <= set(lines)
    attachment.closed()
    await until(lambda: not any(gateway.port.by_channel.values()))
