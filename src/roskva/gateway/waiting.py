"""Whether something waits for the event loop: whether it would find an event if it looked now.

An event loop looks for events with epoll, and the file descriptor of that can itself be asked. Neither uvloop nor asyncio has a public name
for it, so where it is not found nothing ever waits, and only the rests of hinting.py gather. Half a microsecond for each question.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any


def something_waits() -> Callable[[], bool]:
    """Asks it of the running event loop."""
    loop: Any = asyncio.get_running_loop()
    backend = loop._get_backend_id() if hasattr(loop, "_get_backend_id") else _selector_of(loop)
    if backend is None or backend < 0:
        return lambda: False
    asked = select.poll()
    asked.register(backend, select.POLLIN)
    ask = asked.poll
    return lambda: bool(ask(0))


def _selector_of(loop: Any) -> int | None:
    """Of asyncio's own loop; of one that has another kind of selector, none."""
    fileno = getattr(getattr(loop, "_selector", None), "fileno", None)
    return None if fileno is None else int(fileno())
