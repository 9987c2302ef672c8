"""Bugs that somebody might have written into capture's core, as edits of its source. Each names the promise that it breaks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

# The packages, so that a mutant of one of their modules finds them whole.
import roskva.capture.publisher
import roskva.capture.spark
import roskva.capture.stores.mariadb
import roskva.capture.subscriber  # noqa: F401

SOURCE: Final = Path(__file__).parents[3] / "src"
# What is loaded anew around a mutant: the core and the world. Everything else is shared, so that positions and names stay what they are.
_ANEW: Final = (
    *(f"roskva.capture.{name}" for name in ("limits", "flows", "actions", "caravans", "policies", "convoy", "core")),
    *(f"roskva.capture.stores.mariadb.{name}" for name in ("forks", "witness")),
    *(f"roskva.capture.{name}" for name in ("ownership", "spark.buffers", "spark.receiving")),
    *(f"roskva.capture.publisher.{name}" for name in ("placing", "storing", "peers", "beginning", "owning", "beyond", "control", "server")),
    *(f"roskva.capture.subscriber.{name}" for name in ("flow", "connection", "service")),
    *(
        f"roskva.simulation.capture{name}"
        for name in ("", "_checkers", "_forks", "_knobs", "_log", "_publishers", "_running", "_subscribers")
    ),
    *(f"roskva.simulation.capture_shell{name}" for name in ("", "_knobs", "_publishers", "_subscribers")),
)


class Mutant(NamedTuple):
    name: str
    module: str  # of roskva.capture
    old: str  # occurs in it exactly once
    new: str
    promise: str
    seed: int  # that catches it
    world: str = "capture"  # in roskva.simulation


MUTANTS: Final = (
    Mutant(
        "a flow whose buffer was discarded goes on after it",
        "convoy",
        "        if self._drop(flow):\n            flow.taken = flow.sent\n        flow.fallen = True\n",
        "        self._drop(flow)\n        flow.fallen = True\n",
        "in order",
        1,
    ),
    Mutant(
        "a lost connection goes on where it was, not at the datamarker",
        "convoy",
        "        flow.sent = flow.taken = flow.datamarker\n",
        "        flow.taken = flow.sent\n",
        "in order",
        1,
    ),
    Mutant(
        "a flow that changes caravans forgets how far it was",
        "caravans",
        "        flow.taken = self.taken(flow)\n",
        "",
        "invariant",
        2,
    ),
    Mutant(
        "a flow that is ahead of its caravan is sent what it has had",
        "convoy",
        " or (flow.ahead and update.position <= flow.taken):",
        ":",
        "in order",
        5,
    ),
    Mutant(
        "a cut throws away what was still in the buffer",
        "convoy",
        "            self._hand_over(flow, False, actions)\n",
        "            self._drop(flow)\n",
        "in order",
        130,
    ),
    Mutant(
        "a cut is not told",
        "convoy",
        "        if not flow.terms.realtime:\n            actions.append(DataLoss",
        "        if False:\n            actions.append(DataLoss",
        "in order",
        1,
    ),
    Mutant(
        "an acknowledgement of another stream counts",
        "core",
        "        if found.stream != stream or position > found.sent:\n",
        "        if position > found.sent:\n",
        "at least once",
        69,
    ),
    Mutant(
        "a token names what is still in the buffer",
        "core",
        "        position = flow.sent if flow.buffer else self._convoy.taken(flow)\n",
        "        position = self._convoy.taken(flow)\n",
        "at least once",
        5,
    ),
    Mutant(
        "the datamarker of a quiet flow follows though something is outstanding",
        "core",
        "        if flow.sent == flow.datamarker:\n",
        "        if not flow.buffer:\n",
        "at least once",
        1,
    ),
    Mutant(
        "a flow is sent to before it is durable where it begins",
        "flows",
        "        if self.connection is None or self.paused is not None or (self.stored is None and not self.terms.realtime):\n",
        "        if self.connection is None or self.paused is not None:\n",
        "at least once",
        458,
    ),
    Mutant(
        "what is acknowledged is confirmed before it is durable",
        "caravans",
        "(flow.stored or flow.datamarker for flow",
        "(flow.datamarker for flow",
        "kept",
        5,
    ),
    Mutant(
        "flows that other publishers own are forgotten when the log is cut",
        "core",
        "        return min([*self._watched.values(), *([] if owned is None else [owned])], default=self._convoy.lead.position)\n",
        "        return owned\n",
        "kept",
        1,
    ),
    Mutant(
        "the lead stands when its flows wait for credit",
        "convoy",
        "        if caravan is not self._lead and caravan.stands(self.limits):\n",
        "        if caravan.stands(self.limits):\n",
        "harmless",
        12,
    ),
    Mutant(
        "who is fenced goes on",
        "core",
        "        if found is None or found.epoch != epoch:\n            return []\n        self.times_fenced += 1\n",
        "        if True:\n            return []\n        self.times_fenced += 1\n",
        "fenced",
        8,
    ),
    Mutant(
        "what is sent costs no credit",
        "flows",
        "        self.credit_bytes -= size\n",
        "",
        "bounded",
        2,
    ),
    Mutant(
        "a flow that has missed something is placed nowhere",
        "convoy",
        "                if flow.caravan is not None or flow.ready\n",
        "                if flow.caravan is not None\n",
        "caught up",
        1,
    ),
    Mutant(
        "a flow boards the lead though it has missed something",
        "convoy",
        "and (flow.terms.realtime or flow.taken >= self.lead.position):",
        ":",
        "invariant",
        1,
    ),
    Mutant(
        "a caravan joins the lead in the middle of the same commit",
        "convoy",
        "or caravan.position < lead.position:\n            return",
        "or caravan.position[:2] < lead.position[:2]:\n            return",
        "invariant",
        4,
    ),
    Mutant(
        "a policy forgets the lead when it counts caravans",
        "policies",
        "[: limits.caravans_max - 2]",
        "[: limits.caravans_max - 1]",
        "invariant",
        8,
    ),
    Mutant(
        "a log that went on without what was read is taken for one that is behind",
        "stores.mariadb.forks",
        "        return Fork(known.history + 1, after, one.server, min(on)[1]) if on else None\n",
        "        return None\n",
        "at least once",
        3,
        "capture_forks",
    ),
    Mutant(
        "what was read is kept by nobody",
        "stores.mariadb.witness",
        "after == known or self.memory.swap(kept, kept_of(after))",
        "True",
        "at least once",
        3,
        "capture_forks",
    ),
    Mutant(
        "whoever is before a fork with its datamarker is not told",
        "stores.mariadb.forks",
        "(position.sequence if position.index != WHOLE else position.sequence + 1) <= after:",
        "position.sequence <= after + 1:",
        "at least once",
        1738,
        "capture_forks",
    ),
    Mutant(
        "a replica that is ahead of its primary begins a history",
        "stores.mariadb.witness",
        "(follows() and self._is_broken(server, fork, known))",
        "False",
        "kept",
        79,
        "capture_forks",
    ),
    Mutant(
        "a flow that moves is opened elsewhere before it is closed",
        "publisher.placing",
        "            self._close(flow, MOVING, None, now_s)\n        else:\n            self._attach(flow, members[member], now_s)\n",
        "        self._attach(flow, members[member], now_s)\n",
        "one at a time",
        77,
        "capture_shell",
    ),
    Mutant(
        "an end of a stream of before counts as that of the present one",
        "publisher.placing",
        "        if self._streams.get(flow) == frame.flow:",
        "        if True:",
        "caught up",
        2581,
        "capture_shell",
    ),
    Mutant(
        "a flow begins while a callback of the one before it runs",
        "subscriber.flow",
        "            await previous.finished()\n",
        "            pass\n",
        "one at a time",
        46,
        "capture_shell",
    ),
    Mutant(
        "a flow that is closed acknowledges all that had come with what its callback dealt with",
        "subscriber.flow",
        "                        self.processed = update.change.position\n                        return\n",
        "                        break\n",
        "at least once",
        19,
        "capture_shell",
    ),
    Mutant(
        "what Spark had no room for counts as sent",
        "spark.receiving",
        "                self._dropped.add(shard)\n",
        "",
        "in order",
        23,
        "capture_shell",
    ),
    Mutant(
        "a publisher is taken for dead before it gives up by itself",
        "ownership",
        "        return self._now_s - seen.moved_s < self.takeover_s\n",
        "        return self._now_s - seen.moved_s < 0.5 * self.takeover_s\n",
        "one owner",
        2,
        "capture_shell",
    ),
    Mutant(
        "a peer that was not looked at for long is dead if it has its old number",
        "ownership",
        "UNSEEN_SHARE: Final = 0.5 ",
        "UNSEEN_SHARE: Final = 1e9 ",
        "one owner",
        5811,
        "capture_shell",
    ),
    Mutant(
        "other terms hold before the process that has the flow said Closed",
        "publisher.owning",
        "                self._placing.take_back(flow, OTHER_SETTINGS, partial(self._go_on, flow), now_s)\n",
        "                self._go_on(flow)\n",
        "one at a time",
        19,
        "capture_shell",
    ),
)


class DoesNotFit(Exception):
    pass


def source_of(mutant: Mutant) -> str:
    text = (SOURCE / "roskva" / "capture" / f"{mutant.module.replace('.', '/')}.py").read_text()
    if text.count(mutant.old) != 1:
        raise DoesNotFit(f"{mutant.name}: {mutant.old!r} occurs {text.count(mutant.old)} times in {mutant.module}")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def world_of(mutant: Mutant | None) -> Iterator[tuple[Callable[[int], Any], type[Exception]]]:
    """`run` and `Broken` of a world whose core has this bug. The modules of the one without it are back afterwards."""
    kept = {name: sys.modules.pop(name) for name in _ANEW if name in sys.modules}
    _forget_attributes()
    try:
        if mutant is not None:
            name = f"roskva.capture.{mutant.module}"
            module = sys.modules[name] = ModuleType(name)
            exec(compile(source_of(mutant), name, "exec"), module.__dict__)
        world = importlib.import_module(f"roskva.simulation.{'capture' if mutant is None else mutant.world}")
        checkers = importlib.import_module("roskva.simulation.capture_checkers")
        yield world.run, checkers.Broken
    finally:
        for name in _ANEW:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        _forget_attributes()
        for name, loaded in kept.items():
            package, _, child = name.rpartition(".")
            setattr(sys.modules[package], child, loaded)


def _forget_attributes() -> None:
    """Of the packages: `from roskva.capture import actions` looks there first."""
    for name in _ANEW:
        package, _, child = name.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package]).pop(child, None)


def search(mutant: Mutant, seeds: range) -> tuple[int, str] | None:
    """The first seed that catches it with the promise that it names; else the first that catches it at all."""
    other = None
    with world_of(mutant) as (run, broken):
        for seed in seeds:
            try:
                run(seed)
            except broken as found:
                promise: str = found.promise  # type: ignore[attr-defined]
                if promise == mutant.promise:
                    return seed, promise
                other = other or (seed, promise)
    return other


if __name__ == "__main__":
    for one in (one for one in MUTANTS if not sys.argv[1:] or sys.argv[1] in one.name):
        sys.stdout.write(f"{search(one, range(1, 501))} {one.promise}: {one.name}\n")
        sys.stdout.flush()
