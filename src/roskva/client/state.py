"""What a client keeps between its runs: the bytes of Thialfi's WriteState (Thialfi 3.3).

JSON, but opaque to everyone else. The registrations are not in it: the application restates them (Thialfi 4.1.3). Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from roskva.protocol.messages import Text

STATE_FORMAT: Final = 1


class KeptState(msgspec.Struct, frozen=True):
    v: int
    application: Text
    device: Text
    token: Text = ""  # empty: no handshake was ever answered


class StateDamaged(ValueError):
    """The bytes are not a state that this library wrote."""


def encode_state(application: str, device: str, token: str) -> bytes:
    return msgspec.json.encode(KeptState(STATE_FORMAT, application, device, token))


def decode_state(data: bytes) -> KeptState:
    try:
        state = msgspec.json.decode(data, type=KeptState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateDamaged(f"not a client's state: {error}") from None
    if state.v != STATE_FORMAT:
        raise StateDamaged(f"format {state.v} is unknown to this version of the library")
    return state


def prior_token(data: bytes | None, application: str, device: str) -> tuple[str, str]:
    """The token of the last run, and why there is none although a state was given."""
    if data is None:
        return "", ""
    try:
        kept = decode_state(data)
    except StateDamaged as damage:
        return "", str(damage)
    if (kept.application, kept.device) != (application, device):
        return "", f"it belongs to device {kept.device!r} of application {kept.application!r}"
    return kept.token, ""
