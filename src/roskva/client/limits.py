"""What a client makes of the configuration that the server sends (docs/protocol.md, `config`). Pure.

The server sets the policy, but a mistake there must not turn every client into a busy loop: what is out of reason is bounded.
"""

from __future__ import annotations

from typing import Final

import msgspec

from roskva.protocol.messages import Config

_PAUSE_MIN_S: Final = 0.01
_HEARTBEAT_MIN_S: Final = 0.05
_QUIET_MAX_S: Final = 86_400.0
_HEAD_BYTES: Final = 4_096  # token, summary and braces
_CREDENTIAL_BYTES: Final = 50_000  # 8,192 characters, every one of them escaped
_OBJECT_BYTES: Final = 400  # a name of 128 bytes, every one of them escaped, with op, seqno, version and epoch


def within_reason(config: Config) -> Config:
    retry_min_s = max(_PAUSE_MIN_S, config.retry_min_s)
    connect_min_s = max(_PAUSE_MIN_S, config.connect_min_s)
    return msgspec.structs.replace(
        config,
        heartbeat_s=max(_HEARTBEAT_MIN_S, config.heartbeat_s),
        heartbeat_smear=min(0.5, max(0.0, config.heartbeat_smear)),
        keepalive_s=max(_HEARTBEAT_MIN_S, config.keepalive_s),
        retry_min_s=retry_min_s,
        retry_max_s=max(retry_min_s, config.retry_max_s),
        connect_min_s=connect_min_s,
        connect_max_s=max(connect_min_s, config.connect_max_s),
        quiet_s=min(_QUIET_MAX_S, max(0.0, config.quiet_s)),
        operations_per_message_max=max(1, config.operations_per_message_max),
    )


def objects_per_message(config: Config, with_credential: bool = False) -> int:
    """How many operations, acknowledgements or stated registrations fit one message, by number and by size at worst."""
    head_bytes = _HEAD_BYTES + _CREDENTIAL_BYTES * with_credential
    return max(1, min(config.operations_per_message_max, (config.message_bytes_max - head_bytes) // _OBJECT_BYTES))


def connect_pause_s(config: Config, failures: int, dice: float, spread_s: float = 0.0) -> float:
    """The first time quick, unless a gateway asked its many clients to spread; then from half of a bound that doubles to all of it."""
    if failures == 0:
        return max(config.connect_min_s, min(spread_s, config.connect_max_s)) * dice
    bound_s = min(config.connect_max_s, config.connect_min_s * 2.0 ** min(failures, 32))
    return bound_s * (0.5 + dice / 2)
