"""What happened at a Registrar, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """The milestones of notifications and registrations at this Registrar, counted since it started."""

    handshakes: int = 0
    registrations: int = 0
    propagated: int = 0  # tuples that came from the Matcher
    sent: int = 0
    sent_at_once: int = 0  # by the fast path
    held_back: int = 0  # until their interval was over; of several versions that wait together one counts
    resent: int = 0
    acknowledged: int = 0
    acknowledged_in_time: int = 0  # before they had to be written
    stored: int = 0
    void: int = 0
    reissued: int = 0
    collected: int = 0  # clients, when a sweep proposed it
    pending_repeated: int = 0
    superseded: int = 0
    started_anew: int = 0
    failed_writes: int = 0
    sync_requests: int = 0
    shed: int = 0  # registrations on their way and marked clients that were dropped from memory: a scan finds them again
    let_go: int = 0  # notifications of silent clients that were dropped from memory, for others: their rows have them
    scanned: int = 0  # clients that such scans looked at
    credentials_refused: int = 0  # messages and sessions that were told to show another one
    not_authorized: int = 0  # registrations that their user may not make
    revoked: int = 0  # registrations that were ended, since their user may not have them any more
    over_limits: int = 0  # messages with too many operations, and registrations beyond those that a client may have
    disk_full: int = 0  # messages whose registrations were refused near a full disk
    overloaded: int = 0  # messages that were refused with this answer

    def items(self) -> list[tuple[str, int]]:
        return [(one.name, getattr(self, one.name)) for one in fields(self)]
