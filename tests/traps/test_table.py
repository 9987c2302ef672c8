"""docs/traps.md: every trap has its row, and whatever a row names exists and knows the trap's number."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from roskva.simulation.knobs import FAULTS
from tests.simulation.mutants.gallery import GALLERY

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "traps.md"
TRAPS: Final = range(1, 44)
PLATFORM: Final = "ABCDEFGHI"
LATER: Final = "Comes with "  # what is not built yet


class Trap(NamedTuple):
    name: str
    wrong: str
    rule: str
    shown: str

    @property
    def transcripts(self) -> list[str]:
        return re.findall(r"\]\(\.\./tests/transcripts/([^)]+)\)", self.shown)

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[^`]+::[^`]+)`", self.shown)

    @property
    def mutants(self) -> list[str]:
        return re.findall(r'mutant "([^"]+)"', self.shown)

    @property
    def events(self) -> list[str]:
        return re.findall(r'event "([^"]+)"', self.shown)


def rows() -> list[Trap]:
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    return [Trap(*row) for row in cells if row[0]]


@cache
def functions(file: str) -> dict[str, str]:
    """The tests of a file, as pytest calls them, and what each says of itself: name and docstring."""
    found: dict[str, str] = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        within = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and member.name.startswith("test_"):
                found[within + member.name] = f"{member.name} {ast.get_docstring(member) or ''}"
    return found


def words_of(test: str) -> str | None:
    file, _, name = test.partition("::")
    return functions(file).get(name) if (ROOT / file).is_file() else None


def names(text: str, number: int) -> bool:
    """Whether "trap 7", "traps 6 and 7" or test_trap_07_ is in it."""
    if re.search(rf"test_trap_0?{number}_", text):
        return True
    lists = re.findall(r"[Tt]raps? (\d+(?:(?:, | and )\d+)*)", text)
    return any(str(number) in re.findall(r"\d+", numbers) for numbers in lists)


def test_every_trap_has_one_row_and_they_are_in_order() -> None:
    assert [row.name for row in rows()] == [*map(str, TRAPS), *PLATFORM]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_what_a_row_names_exists(row: Trap) -> None:
    assert [test for test in row.tests if words_of(test) is None] == []
    assert [name for name in row.transcripts if not (ROOT / "tests" / "transcripts" / name).is_file()] == []
    assert [name for name in row.mutants if name not in GALLERY] == []
    assert [name for name in row.events if name not in FAULTS] == []
    assert len(row.wrong) > 20
    assert len(row.rule) > 20


@pytest.mark.parametrize("row", [row for row in rows() if row.name.isdigit()], ids=lambda row: row.name)
def test_what_shows_a_trap_knows_its_number(row: Trap) -> None:
    """An event only brings the occasion: it shows nothing by itself."""
    if row.shown.startswith(LATER):
        return
    number = int(row.name)
    known = [test for test in row.tests if names(words_of(test) or "", number)]
    known += [name for name in row.transcripts if names((ROOT / "tests" / "transcripts" / name).read_text(), number)]
    known += [name for name in row.mutants if number in GALLERY[name].traps]
    assert known, f"nothing that is named says that it is about trap {number}"


def test_rows_of_the_platform_name_a_test_unless_they_are_for_later() -> None:
    assert [row.name for row in rows() if row.name in PLATFORM and not row.tests and not row.shown.startswith(LATER)] == []


def test_every_test_that_is_named_by_a_trap_is_in_its_row() -> None:
    """What was written for a trap must not be forgotten by the table."""
    named = {test for row in rows() for test in row.tests}
    files = [str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")]
    written = {f"{file}::{name}" for file in files for name in functions(file) if re.search(r"test_trap_\d", name)}
    assert len(written) > 10
    assert written - named == set()


@pytest.mark.parametrize(
    ("text", "number", "found"),
    [
        ("Trap 7: x", 7, True),
        ("Traps 6 and 7", 7, True),
        ("traps 8, 36 and 39", 36, True),
        ("trap 17", 7, False),
        ("test_trap_07_x", 7, True),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, number: int, found: bool) -> None:
    assert names(text, number) is found


def short_table() -> str:
    """The rows of the traps of one data center as docs/correctness.md has them."""
    lines = ["| trap | transcripts | events | mutants | tests |", "|---|---|---|---|---|"]
    for row in rows():
        if row.name.isdigit():
            transcripts = ", ".join(name[:2] for name in row.transcripts)
            mutants, tests = len(row.mutants) or "", len(row.tests) or ""
            later = " (in part)" if row.shown.startswith(LATER) else ""
            lines.append(f"| {row.name}{later} | {transcripts} | {', '.join(row.events)} | {mutants} | {tests} |")
    return "\n".join(lines) + "\n"


def test_the_short_table_is_up_to_date() -> None:
    assert short_table() in (ROOT / "docs" / "correctness.md").read_text(), short_table()
