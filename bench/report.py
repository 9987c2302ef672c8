"""A measurement's result: figures with their conditions, as JSON for programs and as a small table for people."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import machine

RESULTS: Final = Path(__file__).with_name("results")
SMALLER: Final = RESULTS / "smaller"  # of another form than the measurement's own
ACKNOWLEDGED_AT_ONCE: Final = "every client acknowledges each message of notifications at once, before anything else"


@dataclass(frozen=True, slots=True)
class Aim:
    """What was hoped for, what was found, and the ratio of the two: above 1 is better than hoped."""

    what: str
    unit: str
    aim: float
    measured: float
    larger_is_better: bool = False
    kept_up: bool = True  # False: what was measured is of the part that came through, and meets nothing

    @property
    def ratio(self) -> float:
        if not self.kept_up:
            return 0.0
        if self.larger_is_better:
            return self.measured / self.aim
        return self.aim / self.measured if self.measured else float(self.aim)

    @property
    def met(self) -> bool:
        return self.kept_up and (self.measured >= self.aim if self.larger_is_better else self.measured <= self.aim)


@dataclass(slots=True)
class Result:
    """What every measurement tells. `figures` are its own."""

    name: str
    settings: dict[str, Any]
    warm_up: str
    figures: dict[str, Any]
    aims: list[Aim]
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # in the measured window, by process
    cpu_window_s: float = 0.0
    acknowledgement: str = ACKNOWLEDGED_AT_ONCE
    approximations: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine.describe)
    form: str = ""  # what was chosen otherwise than the measurement does by itself, in words; such a result takes the place of none in full
    measured_at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S %z"))

    def document(self) -> dict[str, Any]:
        document = asdict(self)
        document["aims"] = [
            asdict(aim) | {"ratio": round(aim.ratio, 3), "met": aim.met, "measured": round(aim.measured, 3)} for aim in self.aims
        ]
        return document

    def json(self) -> str:
        return json.dumps(self.document(), indent=2)

    def write(self, folder: Path = RESULTS) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(self.json() + "\n")
        return path

    def table(self) -> str:
        lines = [f"{self.name}: {self.settings.get('load', '')}{f' (smaller form: {self.form})' if self.form else ''}"]
        for aim in self.aims:
            word = "met" if aim.met else "missed" if aim.kept_up else "missed, since it did not keep up"
            sign = ">=" if aim.larger_is_better else "<="
            aimed = f"{aim.aim:,.1f}".removesuffix(".0")
            lines.append(f"  {aim.what:<52} {aim.measured:>12,.1f} {aim.unit:<6} aim {sign} {aimed}: {word} (x {aim.ratio:.2f})")
        lines += rows_of(self.figures)
        if self.cpu_seconds:
            shares = ", ".join(f"{role} {seconds:.1f}" for role, seconds in self.cpu_seconds.items())
            lines.append(f"  CPU seconds in {self.cpu_window_s:.0f} s: {shares}")
        return "\n".join(lines)


def module_of(name: str) -> str:
    """Where a measurement is written: `capture-lag` is bench/capture/lag.py."""
    return f"bench.{name.replace('-', '.', 1)}"


def rows_of(figures: dict[str, Any], indent: str = "  ") -> list[str]:
    """Figures as lines; a list of records becomes a table."""
    lines: list[str] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}")
            lines += rows_of(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{indent}{name}")
            columns = [column for column, entry in value[0].items() if not isinstance(entry, (dict, list))]
            lines.append(indent + "  " + "  ".join(f"{column:>{max(9, len(column))}}" for column in columns))
            lines += [indent + "  " + "  ".join(f"{_text(row[c]):>{max(9, len(c))}}" for c in columns) for row in value]
        elif not isinstance(value, list):
            lines.append(f"{indent}{name:<52} {_text(value):>12}")
    return lines


def _text(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest; of nothing, zeros."""
    ordered = sorted(values_ms)
    if not ordered:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    last = len(ordered) - 1
    found = {f"p{part}": ordered[min(last, len(ordered) * part // 100)] for part in (50, 95, 99)}
    return {name: round(value, 2) for name, value in (found | {"max": ordered[-1]}).items()}
