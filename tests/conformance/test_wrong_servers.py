"""A server that is wrong in one thing is caught, by the transcripts that are about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roskva.conformance.outcome import Difference
from roskva.conformance.player import Player
from roskva.conformance.transcripts import load, select
from tests.conformance.houses import JoinedHouse, JoinedLine, Lie

Message = dict[str, Any]


def without(*fields: str) -> Lie:
    return lambda message: {name: value for name, value in message.items() if name not in fields}


def each(field: str, change: Callable[[Message], Message | None]) -> Lie:
    """Changes every entry of a list; an entry that becomes None is left out."""

    def lie(message: Message) -> Message:
        if field in message:
            message[field] = [changed for one in message[field] if (changed := change(one)) is not None]
        return message

    return lie


def once(lie: Lie, only: Callable[[Message], bool]) -> Lie:
    """Only the first message for which it holds."""
    done: list[Message] = []

    def lies(message: Message) -> Message | None:
        if not done and only(message):
            done.append(message)
            return lie(message)
        return message

    return lies


class ConfirmsTooEarly:
    """Sends `registered` before what the registration yields, which it holds back."""

    def __init__(self) -> None:
        self._held: list[Message] = []

    def __call__(self, message: Message) -> Message:
        if "notify" in message and not self._held:
            self._held = message.pop("notify")
            message["status"] = [{"object": one["object"], "state": "registered"} for one in self._held]
        return message


def start_anew(**changes: object) -> Lie:
    return lambda message: message | {"start_anew": message["start_anew"] | changes} if "start_anew" in message else message


def grant(**changes: object) -> Lie:
    return lambda message: message | {"grant": message["grant"] | changes} if "grant" in message else message


def never(field: str) -> Lie:
    """Says nothing that has this field."""
    return lambda message: None if field in message else message


def version(number: int, **changes: object) -> Lie:
    return each("notify", lambda one: one | changes if one.get("version") == str(number) else one)


def tells_of_all_versions(message: Message) -> Message:
    last = [one for one in message.get("notify", []) if one.get("version") == "9"]
    return message | {"notify": [last[0] | {"version": "8"}, *last]} if last else message


def tells_whenever(state: str) -> Lie:
    """With a status of this kind comes a notification that nobody asked for."""

    def lie(message: Message) -> Message:
        told = [
            {"object": one["object"], "seqno": "4294967297", "version": "7"} for one in message.get("status", []) if one["state"] == state
        ]
        return message | {"notify": [*message.get("notify", []), *told]}

    return lie


def not_the_grant(message: Message) -> bool:
    return "grant" not in message


def wrong_buckets(message: Message) -> Message:
    if "buckets" in message.get("sync_request", {}):
        message["sync_request"]["buckets"] = [1]
    return message


NOTHING = {"count": 0, "digest": "0" * 32}
REFUSED = {"error": {"code": "unavailable", "message": "no"}}
GONE = {"code": "token-invalid", "keep": False}

LIES: dict[str, tuple[str, Lie, str]] = {
    "a version that was not published": ("02", version(7, version="8"), "notify .*hello version 7"),
    "unknown, though the version is known": ("02", version(7, version=None), "version 7"),
    "no notification of an update": ("04", each("notify", lambda one: one if "version" not in one else None), "notify .* version 7"),
    "a notification of what is held": ("03", tells_whenever("registered"), "not in the transcript: notify .*hello version 7"),
    "never confirms": ("01", each("status", lambda one: None), "status .*hello registered"),
    "confirms too early": ("01", ConfirmsTooEarly(), "before what the registration yields"),
    "says failed": ("01", each("status", lambda one: one | {"state": "failed"}), "registered"),
    "a failure that is transient": ("12", each("status", lambda one: one | {"transient": one["state"] == "failed"}), "permanent"),
    "another seqno for a later version": ("04", version(9, seqno="7"), "version 9"),
    "the same seqno for a new registration": ("09", each("notify", lambda one: one | {"seqno": "4294967297"}), "version 7"),
    "a seqno that is a number": ("01", each("notify", lambda one: one | {"seqno": int(one["seqno"])}), "not of the documented form"),
    "an epoch of its own": ("01", each("notify", lambda one: one | {"epoch": 3}), "the epoch 3"),
    "no summary": ("01", without("summary"), "no summary"),
    "a summary that never changes": ("01", lambda message: message | {"summary": NOTHING}, "expected within .*: .*count=1"),
    "always unsettled": ("01", lambda message: message | {"unsettled": 1}, "unsettled 0"),
    "no time": ("01", without("time_ms"), "no time_ms"),
    "a grant without config": ("01", without("config"), "without config"),
    "a grant with another nonce": ("01", grant(nonce="x"), "expected .* grant"),
    "a grant of another token than the message's": ("01", grant(token="x"), "does not carry the granted token"),
    "another token": ("01", lambda message: message if "grant" in message else message | {"token": "x"}, "never granted"),
    "an error": ("01", once(lambda message: REFUSED, not_the_grant), "refused a message: unavailable"),
    "no answer to a heartbeat": ("01", once(lambda message: None, not_the_grant), "expected an answer"),
    "start anew for no reason": (
        "04",
        lambda m: {"token": m["token"], "start_anew": GONE} if "status" in m else m,
        "heard instead: start anew",
    ),
    "start anew that keeps the token": ("11", start_anew(keep=True), "token-invalid keep false"),
    "superseded by another name": ("10", start_anew(code="token-elsewhere"), "session-superseded"),
    "never superseded": ("10", never("start_anew"), "session-superseded"),
    "a client that is not forgotten": ("14", never("start_anew"), "start anew"),
    "a new id for a client that returns": ("05", lambda m: m | {"summary": NOTHING} if m["token"] and "grant" in m else m, "count=2"),
    "the wrong buckets": ("08", wrong_buckets, "buckets"),
    "all versions after an absence": ("07", tells_of_all_versions, "not in the transcript: notify .* version 8"),
    "an unregistered object is told of": ("09", tells_whenever("unregistered"), "version 7"),
}


@pytest.mark.parametrize("name", LIES)
async def test_a_wrong_server_is_caught(name: str) -> None:
    number, lie, why = LIES[name]
    (transcript,) = select(load(), [number])
    with pytest.raises(Difference, match=why):
        await Player(transcript, JoinedHouse(lie), "run").play()


class TellsTheSource(JoinedHouse):
    async def publish(self, name: str, version: int, source: str) -> None:
        await super().publish(name, version, "")


async def test_a_server_that_tells_the_source_of_a_change_is_caught() -> None:
    (transcript,) = select(load(), ["04"])
    with pytest.raises(Difference, match=r"not in the transcript: notify .*hello version 10"):
        await Player(transcript, TellsTheSource(), "run").play()


class KeepsNothing(JoinedHouse):
    """Forgets its clients whenever one connects."""

    async def connect(self) -> JoinedLine:
        self.server.table.clear()
        self.server.sessions.clear()
        return await super().connect()


@pytest.mark.parametrize("number", ["05", "06", "07", "08"])
async def test_a_server_that_keeps_nothing_is_caught(number: str) -> None:
    (transcript,) = select(load(), [number])
    with pytest.raises(Difference):
        await Player(transcript, KeepsNothing(), "run").play()


class RepeatsItself:
    """Says every status again with all that it says later."""

    def __init__(self) -> None:
        self._said: list[Message] = []

    def __call__(self, message: Message) -> Message:
        if "grant" in message or "start_anew" in message:
            self._said.clear()
            return message
        fresh = message.get("status", [])
        again = [one for one in self._said if one["object"] not in {other["object"] for other in fresh}]
        self._said = again + fresh
        return message | {"status": again + fresh}


HARMLESS: dict[str, Lie] = {
    "unknown fields": lambda m: m | {"news": {"a": 1}, "notify": [one | {"colour": "red"} for one in m.get("notify", [])]},
    "another clock": lambda m: m | {"time_ms": 1},
    "another config": lambda m: m | {"config": m["config"] | {"heartbeat_s": 7.0, "later": True}} if "config" in m else m,
    "hints at any time": lambda m: m if "sync_request" in m or "summary" not in m else m | {"sync_request": {}},
    "statuses again and again": RepeatsItself(),
    "everything twice": lambda m: m | {"notify": m.get("notify", []) * 2, "status": m.get("status", []) * 2},
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("number", ["02", "04", "06", "07", "10", "11", "14"])
async def test_what_a_server_may_do_is_no_failure(name: str, number: str) -> None:
    (transcript,) = select(load(), [number])
    await Player(transcript, JoinedHouse(HARMLESS[name]), "run").play()
