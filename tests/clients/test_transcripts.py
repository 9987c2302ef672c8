"""The transcripts that drive the Python core drive the TypeScript core, and nothing that is said differs, line by line.

Those of tests/transcripts show what happens inside, those of docs/transcripts the messages themselves: text, order of fields and all.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.clients.stdio import Node, TypescriptCore
from tests.properties import application
from tests.protocol import replay
from tests.protocol.replay import Replay, steps
from tests.transcripts.script import PATHS, blocks, play, rewritten
from tests.transcripts.stage import Stage

SHOWN = sorted(replay.TRANSCRIPTS.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_typescript_core_does_what_is_written(path: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "ClientCore", partial(TypescriptCore, node))
    text = path.read_text(encoding="utf-8")
    assert rewritten(text) == text


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.stem)
def test_the_typescript_core_says_what_the_documentation_shows(path: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "ClientCore", partial(TypescriptCore, node))
    replayed = Replay()
    for directive, shown in steps(path.read_text(encoding="utf-8")):
        replayed.said.clear()
        replayed.obey(directive)
        assert replayed.said == shown, f"{path.name}: after > {directive}"


def test_it_is_the_typescript_core_that_speaks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above could not fail if the stage had its cores from elsewhere."""
    monkeypatch.setattr(application, "ClientCore", partial(TypescriptCore, node))
    monkeypatch.setattr(TypescriptCore, "received", lambda self, now, message: [])
    first = next(blocks(PATHS[0].read_text(encoding="utf-8")))
    assert play(Stage(), first) != first.answer
