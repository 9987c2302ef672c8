"""The form of a transcript: commands, a line `----`, and below it what is said; comments begin with #.

    # anything
    client phone start
    ----
    phone -> registrar: init nonce-1, wishes {}

Blank lines end what is said. Several commands may share one answer. `quietly COMMAND` says nothing; a command that nothing follows from
answers `(nothing)`. The commands are in `language`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.transcripts.language import obey
from tests.transcripts.stage import Stage

FOLDER: Final = Path(__file__).parent
PATHS: Final = sorted(FOLDER.glob("*.txt"))
RULE: Final = "----"
RUN_SHOWN_MAX: Final = 6


class Malformed(ValueError):
    """The file is not a transcript."""


@dataclass
class Block:
    """Commands with what they answer; `before` are the comments and blank lines above."""

    line: int
    before: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)


def blocks(text: str) -> Iterator[Block]:
    block, answering = Block(1), False
    for number, line in enumerate(text.splitlines(), 1):
        if answering and line:
            block.answer.append(line)
        elif answering:
            yield block
            block, answering = Block(number + 1), False
        elif line == RULE:
            if not block.commands:
                raise Malformed(f"line {number}: an answer to nothing")
            answering = True
        elif not line or line.startswith("#"):
            if block.commands:
                raise Malformed(f"line {number}: commands without an answer")
            block.before.append(line)
        else:
            block.commands.append(line)
    if answering:
        yield block
    elif block.commands:
        raise Malformed(f"line {block.line}: commands without an answer")


def play(stage: Stage, block: Block) -> list[str]:
    """What the block's commands answer."""
    stage.lines.clear()
    for command in block.commands:
        obey(stage, command.partition("  #")[0].strip())
    return shortened(stage.lines) or ["(nothing)"]


def shortened(lines: list[str]) -> list[str]:
    """Long runs of one callback are told by their ends."""
    short: list[str] = []
    for kind, run in groupby(lines, key=lambda line: " ".join(line.split()[:3])):
        same = list(run)
        long = " app: " in kind and len(same) > RUN_SHOWN_MAX
        short += [*same[:2], f"... {len(same) - 3} more ...", same[-1]] if long else same
    return short


def rewritten(text: str) -> str:
    stage, lines = Stage(), []
    for block in blocks(text):
        lines += [*block.before, *block.commands, RULE, *play(stage, block), ""]
    return "\n".join(lines)
