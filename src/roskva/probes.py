"""Probes: rare branches say that they ran, so that a simulation which never took one of them is known to prove nothing about it.

`reached("name")` costs one comparison unless somebody counts. Pure: the cores use it.
"""

from __future__ import annotations

_counts: dict[str, int] | None = None


def reached(name: str) -> None:
    if _counts is not None:
        _counts[name] = _counts.get(name, 0) + 1


def count() -> dict[str, int]:
    """Begin to count, from nothing; the answer fills as branches run."""
    global _counts
    _counts = {}
    return _counts
