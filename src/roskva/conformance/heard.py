"""What a server said, in a form that can be compared: without how it was packed into messages. Pure."""

from __future__ import annotations

from typing import NamedTuple

from roskva.protocol.messages import Notify, Status


class Heard(NamedTuple):
    """Something that the server said. `what` is its kind; names and versions are the actual ones."""

    what: str
    object: str = ""
    seqno: int = 0
    version: str | None = None
    state: str = ""
    code: str = ""
    flag: bool = False  # keep, or transient
    buckets: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = [self.what.replace("_", " "), self.object, self.state, self.code]
        if self.what == "notify":
            words.append("unknown" if self.version is None else f"version {self.version}")
        if self.what == "start_anew":
            words.append(f"keep {str(self.flag).lower()}")
        if self.state == "failed":
            words.append("transient" if self.flag else "permanent")
        return " ".join(word for word in [*words, *map(str, self.buckets)] if word)


def notified(one: Notify, name: str) -> Heard:
    return Heard("notify", name, seqno=int(one.seqno), version=one.version)


def stated(one: Status, name: str) -> Heard:
    return Heard("status", name, state=one.state, code=one.code, flag=one.transient)
