"""The way to a state of the exhaustive search in words, a line for each step. Not here: how it was found."""

from __future__ import annotations

import itertools
from typing import Any

from roskva.protocol.messages import decode_client, decode_server
from roskva.simulation.exhaustive_state import Step, Tell
from roskva.simulation.exhaustive_world import Model

_FATES = {"lose": "lost: ", "repeat": "arrives, and once more later: "}


def trace(model: Model, path: list[int]) -> list[str]:
    """Parts change places as they are put in order; names follow them."""
    names = [f"client {number}" for number in range(1, model.size.clients + 1)]
    lines = []
    for before, after in itertools.pairwise(path):
        step = _step_between(model, before, after)
        lines.append(_line(step, names))
        order = sorted(range(len(names)), key=lambda place: step.parts[place])
        names = [names[place] for place in order]
    idle = len(lines)
    while idle and (": heartbeat" in lines[idle - 1] or lines[idle - 1].startswith("time passes")):
        idle -= 1
    told = [f"{number:3} {line}" for number, line in enumerate(lines[:idle], start=1)]
    return [*told, "    and then nothing but heartbeats"] if idle < len(lines) else told


def _step_between(model: Model, before: int, after: int) -> Step:
    shared, parts = model.unpack(before)
    steps = itertools.chain(model.steps(before)[0], model.time_passes(shared, parts, range(len(parts))))
    return next(step for step in steps if model.pack(step.shared, step.parts) == after)


def _line(step: Step, names: list[str]) -> str:
    who = names[step.part] if step.part >= 0 else ""
    kind, *rest = step.what
    what: Any = rest[0] if rest else None
    died = f", and the Registrar dies after {rest[-1]} of its durable steps" if "dies after step" in rest else ""
    if isinstance(what, tuple) and str(kind).endswith(("to client", "to server")):
        return _packet_line(str(kind), what[1], who) + died
    if isinstance(what, Tell):
        words = {"tell": "asks the Registrar", "settle": "gets the Registrar's answer", "blind": "writes in the Registrar's stead"}
        told = what.told
        return f"task {what.task}: {words[str(kind)]}: {who}, seqno {told.seqno & 0xFFFFFFFF}, version {told.version}{died}"
    if kind == "time":
        clocks: Any = rest
        moved = [f"{who if place < 0 else names[place]}, {before:.1f} s to {after:.1f} s" for place, before, after in clocks]
        return f"time passes for {'; for '.join(moved)}"
    lines = {
        "acknowledge": f"{who}: the application acknowledges {'unknown' if what is None else f'version {what}'}",
        "unregister": f"{who}: the application unregisters",
        "register": f"{who}: the application registers again",
        "flush": f"the Registrar writes the acknowledgements of {who}",
        "marks": f"the Registrar looks at the row of {who}, which is marked",
        "client dies": f"{who} dies and starts again; the Registrar {'is told' if what else 'does not notice'}",
        "registrar dies": f"the Registrar dies{' with its connections' if what else '; connections live on and are announced'}",
        "driver dies": "the pipeline's driver dies with its tasks",
        "driver dies, workers live on": "the pipeline's driver dies; its tasks live on as orphans",
        "publish": f"version {what} is published",
        "begin": f"a batch begins: tasks {', '.join(map(str, rest))}",
        "commit": "the batch is committed",
        "orphan ends": f"task {what} ends",
        "write": f"task {what} writes",
        "read": f"task {what} reads and matches",
    }
    return lines[str(kind)] + died


def _packet_line(kind: str, data: bytes, who: str) -> str:
    fate = _FATES.get(kind.split(maxsplit=1)[0], "")
    if kind.endswith("to client"):
        return f"{fate}Registrar to {who}: {_server_words(data)}"
    return f"{fate}{who} to Registrar: {_client_words(data)}"


def _server_words(data: bytes) -> str:
    message = decode_server(data)
    words = ["grant"] if message.grant else []
    words += [f"start anew ({message.start_anew.code})"] if message.start_anew else []
    words += [status.state for status in message.status]
    words += [f"notify {f'version {told.version}' if told.version else 'unknown'}" for told in message.notify]
    words += ["please sync"] if message.sync_request else []
    has = "" if message.summary is None else f" [has {message.summary.count}]"
    return (", ".join(words) or "heartbeat") + has


def _client_words(data: bytes) -> str:
    message = decode_client(data, 1 << 20)
    words = [f"init {'with its token' if message.init.prior else ''}".strip()] if message.init else []
    words += ["register"] * len(message.register)
    words += ["unregister"] * len(message.unregister)
    words += [f"ack {f'version {ack.version}' if ack.version else 'unknown'}" for ack in message.acks]
    words += ["sync"] if message.sync else []
    wishes = "" if message.summary is None else f" [wishes {message.summary.count}]"
    return (", ".join(words) or "heartbeat") + wishes
