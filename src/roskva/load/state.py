"""What simulated clients keep between two runs: their tokens, in one file, so that the next run returns with the same ids.

The first line says of which plan they are, as JSON; then comes one token a line, in the order of the clients' numbers; an empty line is a
client that has none. A token is a secret of its client: the file is for its owner alone. Written whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from roskva.durable import sync_directory
from roskva.errors import BadRequest
from roskva.load.plan import Plan

_FORMAT: Final = "roskva-load-1"


class _Head(msgspec.Struct, frozen=True):
    format: str
    application: str
    device_prefix: str


def read_tokens(path: Path, plan: Plan) -> list[str]:
    """Of the plan's clients; those beyond what the file holds have none. A file that is not there holds nothing."""
    try:
        lines = path.read_text(encoding="ascii").split("\n")
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"The state file {path} cannot be read: {error}.") from None
    if not lines:
        return [""] * plan.clients
    try:
        head = msgspec.json.decode(lines[0], type=_Head)
    except msgspec.DecodeError:
        raise BadRequest(f"{path} is not a state file of `roskva load`.") from None
    if head != _head(plan):
        raise BadRequest(f"The state file {path} is of other clients: {head.device_prefix}... of {head.application}.")
    tokens = lines[1 : 1 + plan.clients]
    return tokens + [""] * (plan.clients - len(tokens))


def write_tokens(path: Path, plan: Plan, tokens: Iterable[str]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="ascii") as out:
            out.write(msgspec.json.encode(_head(plan)).decode())
            for token in tokens:
                out.write("\n" + token)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise BadRequest(f"The state file {path} cannot be written: {error}.") from None


def _head(plan: Plan) -> _Head:
    return _Head(_FORMAT, plan.application, plan.device_prefix)
