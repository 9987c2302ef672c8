"""What a measurement was made on: stated in every result, since absolute times mean little without it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_LOOPS: Final = 300_000
_PACKAGES: Final = ("pyspark", "pyarrow", "picows", "uvloop", "msgspec", "aiohttp")


def describe() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": _first(r"^model name\s*: (.*)$", "/proc/cpuinfo"),
        "memory_gib": round(int(_first(r"^MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _java(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "load_average_at_start": [round(value, 2) for value in os.getloadavg()],
        "python_loop_ms": _loop_ms(),
        "commit": _commit(),
    }


def _loop_ms() -> float:
    """CPU time of the same loop, the fastest of five: virtual machines of one kind differ by half, and one by a third within minutes."""
    times_s = []
    for _ in range(5):
        began_s = time.process_time()
        total = 0
        for number in range(_LOOPS):
            total += number * number
        times_s.append(time.process_time() - began_s)
    return round(1000.0 * min(times_s), 1)


def _commit() -> str:
    """What was measured; `-dirty`: and what is not committed yet."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


def _first(pattern: str, path: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _java() -> str:
    from roskva.errors import RoskvaError
    from roskva.pipeline.session import find_java_home

    try:
        home = find_java_home()
        told = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (RoskvaError, OSError, subprocess.TimeoutExpired):
        return "none"
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"
