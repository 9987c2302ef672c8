"""docs/paper.md names every claim's test, and only tests that exist."""

from __future__ import annotations

import re

from tests.paper.table import DOCUMENT, FOLDER, PAPERS, claims, document

THIALFI, WORMHOLE = PAPERS


def test_the_table_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tests.paper.table > docs/paper.md"


def test_the_table_names_existing_tests() -> None:
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT.read_text()))
    assert named == {claim.test for paper in PAPERS for claim in claims(paper)}
    assert len(claims(THIALFI)) > 80
    assert len(claims(WORMHOLE)) > 50


def test_every_test_of_this_folder_is_a_claim_of_one_paper() -> None:
    files = sorted(path.name for paper in PAPERS for path in FOLDER.glob(paper.files))
    assert files == sorted(path.name for path in FOLDER.glob("test_*.py") if path.name != "test_table.py")
    tests = [name for file in files for name in re.findall(r"^(?:async )?def (test_\w+)", (FOLDER / file).read_text(), re.MULTILINE)]
    assert sorted(tests) == sorted(claim.test for paper in PAPERS for claim in claims(paper))


def test_every_claim_is_told_in_words() -> None:
    assert [claim.test for paper in PAPERS for claim in claims(paper) if len(claim.text) < 40] == []


def test_every_section_is_covered() -> None:
    sections = {claim.section for claim in claims(THIALFI)}
    wanted = [(3, 1), (3, 3), (4, 1), (4, 1, 1), (4, 1, 2), (4, 1, 3), (4, 1, 4), (4, 1, 5), (4, 1, 6), (4, 2), (5,)]
    assert sections >= {*wanted, (4, 2, 1), (4, 2, 2), (4, 2, 3)}
    assert {claim.place for claim in claims(WORMHOLE)} == {"2", "3", "3.1", "3.2", "3.3.1", "3.3.2", "5", "Table 1"}
