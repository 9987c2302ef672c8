"""docs/paper.md names every claim's test, and only tests that exist."""

from __future__ import annotations

import re

from tests.paper.table import DOCUMENT, claims, document


def test_the_table_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tests.paper.table > docs/paper.md"


def test_the_table_names_existing_tests() -> None:
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT.read_text()))
    assert named == {claim.test for claim in claims()}
    assert len(named) > 80


def test_every_claim_is_told_in_words() -> None:
    assert [claim.test for claim in claims() if len(claim.text) < 40] == []


def test_every_section_is_covered() -> None:
    sections = {claim.section for claim in claims()}
    wanted = [(3, 1), (3, 3), (4, 1), (4, 1, 1), (4, 1, 2), (4, 1, 3), (4, 1, 4), (4, 1, 5), (4, 1, 6), (4, 2), (5,)]
    assert sections >= {*wanted, (4, 2, 1), (4, 2, 2), (4, 2, 3)}
