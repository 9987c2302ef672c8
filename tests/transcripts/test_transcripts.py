"""The transcripts beside this file hold, line by line, and the promise holds at the end of each.

Write them anew with `python -m tests.transcripts.rewrite`, then read the difference: it is a change of what the cores do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roskva.matcher.core import Batch, Change, collapse
from roskva.model import SETTLED
from roskva.registrar import core
from tests.transcripts import matching
from tests.transcripts.language import ALL_IS_SETTLED, COMMANDS
from tests.transcripts.script import PATHS, Malformed, blocks, play, rewritten
from tests.transcripts.stage import Stage

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
LINES_MAX = 120  # what a person reads in a minute or two
SECTIONS = ("4.1.3", "4.1.4", "4.1.5", "4.1.6", "4.2.3", "4.2.4", "4.2.6")
TRAPS = {1, 2, 3, 10, 11, 15, 16, 21, 22, 23, 24, 25, 26, 31, 32, 33, 37, 38, 41, 42, 43}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_happens_is_what_is_written(path: Path) -> None:
    stage = Stage()
    for block in blocks(text_of(path)):
        assert play(stage, block) == block.answer, f"{path.name}, line {block.line}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_transcript_ends_where_the_promise_holds(path: Path) -> None:
    found = list(blocks(text_of(path)))
    assert all(block.answer for block in found), "an answer is missing: rewrite it"
    assert found[-1].commands[-1] == "check"
    assert found[-1].answer[-1] == ALL_IS_SETTLED


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_transcript_is_short_and_says_what_it_shows(path: Path) -> None:
    lines = text_of(path).splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= LINES_MAX
    assert all(len(line) <= 200 for line in lines)


def test_sections_and_traps_have_their_transcripts() -> None:
    comments = "\n".join(line for path in PATHS for line in text_of(path).splitlines() if line.startswith("#"))
    assert [section for section in SECTIONS if section not in comments] == []
    named = re.findall(r"[Tt]raps? (\d+)(?: and (\d+))?", comments)
    assert {int(number) for pair in named for number in pair if number} == TRAPS


def test_every_command_is_used_or_gone() -> None:
    said = [
        command.partition("  #")[0].strip().removeprefix("quietly ")
        for path in PATHS
        for block in blocks(text_of(path))
        for command in block.commands
    ]
    assert [pattern for pattern in COMMANDS if not any(re.fullmatch(pattern, one) for one in said)] == []


def test_the_documentation_links_every_transcript() -> None:
    linked = re.findall(r"\]\(\.\./tests/transcripts/([\w.-]+\.txt)\)", text_of(DOCUMENT))
    assert linked == [path.name for path in PATHS]


def test_rewriting_changes_nothing() -> None:
    text = text_of(PATHS[0])
    assert rewritten(text) == text
    assert rewritten(text.replace("phone app: notify hello, unknown\n", "")) == text


@pytest.mark.parametrize("text", ["check\n", "check\n\nall is settled\n", "----\nall is settled\n"])
def test_what_is_no_transcript_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        list(blocks(text))


def test_what_a_transcript_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot say"):
        play(Stage(), next(blocks("the moon is full\n----\n")))


# What each transcript is there for: break the rule, and it says something else.


def _forget_the_notification(row: Any, told: Any, unacknowledged: bool, version: int | None) -> Any:
    return _settle(row, told, False, version)


def _believe_one_source(updates: Any, registrations: Any) -> Batch:
    batch = collapse(updates, registrations)
    sources = {update.object: update.source for update in sorted(updates, key=lambda update: update.version)}
    changes = {key: Change(change.version, sources[key], bool(sources[key])) for key, change in batch.changes.items()}
    return replace(batch, changes=changes)


def _settle_whatever_comes(row: Any, told: Any) -> core.Judgement:
    judgement = _judge(row, told)
    return core.Judgement(verdict=SETTLED) if judgement.reissue or judgement.verdict is not None else judgement


def _clear_the_old_name(key: Any, seqno: int, version: int | None, value: bytes) -> Any:
    return _notification_cell(key, 1 << 32 | 1, version, value) if version is not None else _notification_cell(key, seqno, version, value)


_settle, _judge, _notification_cell = core.settle, core.judge, core.notification_cell

MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "02-registration-finds-a-version": (core, "settle", _forget_the_notification),
    "13-messages-repeated-and-late": (core.Operations, "late", lambda self, key, number: False),
    "09-two-processes-one-state": (core, "admit", lambda row, session, active: core.Admission.WELCOME),
    "18-registered-again": (core, "notification_cell", _clear_the_old_name),
    "19-the-source": (matching, "collapse", _believe_one_source),
    "21-collected": (core, "may_keep_id", lambda *arguments: True),
    "22-rolled-back": (core, "judge", _settle_whatever_comes),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = [path for path in PATHS if path.stem == name]
    where, attribute, mutant = MUTANTS[name]
    assert _differs(path) is False
    monkeypatch.setattr(where, attribute, mutant)
    assert _differs(path) is True


def _differs(path: Path) -> bool:
    stage = Stage()
    try:
        return any(play(stage, block) != block.answer for block in blocks(text_of(path)))
    except (AssertionError, LookupError):
        return True  # what happens is so different that a command makes no sense any more
