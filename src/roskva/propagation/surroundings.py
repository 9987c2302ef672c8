"""What a task asks of the machine that it runs on: time, pauses, threads, unique bytes, connections.

Everything else in a task is decided by its input. The simulated world has surroundings of its own, and runs the same tasks in them.
Imports no Spark.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _spawn(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Surroundings:
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    spawn: Callable[[str, Callable[[], None]], None] = _spawn  # beside the caller, until it returns
    unique: Callable[[int], bytes] = os.urandom
    dial: Callable[..., Any] = socket.create_connection  # ((host, port), timeout=seconds) -> a socket


REAL = Surroundings()
