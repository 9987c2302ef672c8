"""The client of Roskva: a pure core, and an asyncio shell around it (Thialfi 3.3 and 4.1).

`core` and what it is made of (`actions`, `desired`, `handover`, `operations`, `state`) do no I/O. `shell` gives the core a
channel (`channels`), a clock, dice and a file. Importing this package imports none of them: the pure parts stay free of asyncio and
aiohttp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roskva.client.actions import Notification
    from roskva.client.core import ClientCore
    from roskva.client.shell import Client

__all__ = ["Client", "ClientCore", "Notification"]

_HOMES = {"Client": "shell", "ClientCore": "core", "Notification": "actions"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
