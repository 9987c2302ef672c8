"""The transcripts of docs/transcripts hold: both sides say exactly what they show, line by line.

Every `C:` line is compared with what the real client core says and given to the real Registrar and Matcher cores; every `S:` line
is compared with what those say and given to the client core. Write them anew with `python -m tests.protocol.replay`, then read the
difference: it is a change of the protocol.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from roskva.protocol.messages import ClientMessage, ServerMessage, decode_client, decode_server
from tests.protocol.replay import MESSAGE_BYTES_MAX, TRANSCRIPTS, Replay, steps

PATHS = sorted(TRANSCRIPTS.glob("*.txt"))
DOCUMENT = TRANSCRIPTS.parent / "protocol.md"
SHORTENED = '"... '


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_client_and_server_say_what_the_transcript_shows(path: Path) -> None:
    replay = Replay()
    for directive, shown in steps(path.read_text(encoding="utf-8")):
        replay.said.clear()
        replay.obey(directive)
        assert replay.said == shown, f"{path.name}: after > {directive}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_line_is_a_message_by_the_real_decoders(path: Path) -> None:
    checked = 0
    for line in lines_of(path):
        who, _, text = line.partition(": ")
        if who not in ("C", "S") or SHORTENED in text:
            continue
        checked += 1
        message = decode_client(text.encode(), MESSAGE_BYTES_MAX) if who == "C" else decode_server(text.encode())
        assert isinstance(message, ClientMessage if who == "C" else ServerMessage)
        assert json.loads(text) != {}
    assert checked >= 4


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_message_of_a_session_carries_its_token_and_a_summary(path: Path) -> None:
    for line in lines_of(path):
        who, _, text = line.partition(": ")
        if who == "C":
            message = json.loads(text)
            assert "summary" in message
            assert ("token" in message) != ("init" in message)
        if who == "S" and "start_anew" not in text:
            message = json.loads(text)
            assert {"token", "summary", "time_ms"} <= message.keys()


def test_the_documentation_links_every_transcript() -> None:
    linked = set(re.findall(r"\]\(transcripts/([\w.-]+\.txt)", DOCUMENT.read_text(encoding="utf-8")))
    assert linked == {path.name for path in PATHS}
    assert len(PATHS) >= 11


def test_a_transcript_that_differs_is_noticed() -> None:
    """The replay itself can fail: a changed version in a line is found."""
    text = (TRANSCRIPTS / "02-known-version.txt").read_text(encoding="utf-8").replace('"version": "7"', '"version": "8"')
    replay, differences = Replay(), 0
    for directive, shown in steps(text):
        replay.said.clear()
        replay.obey(directive)
        differences += replay.said != shown
    assert differences == 1


def test_what_a_transcript_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot say"):
        Replay().obey("the moon is full")
