"""docs/paper.md: which claim of the paper is checked by which test. Written from the tests by `python -m tests.paper.table`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parent.parent / "docs" / "paper.md"
_NAME = re.compile(r"test_((?:\d+_)+)")

HEAD = """\
# The paper, claim by claim

Thialfi: A Client Notification Service for Internet-Scale Applications (SOSP 2011). Every claim of sections 3, 4.1, 4.2 and 5
that concerns one data center, in our words, and the test that checks it, run against the real cores of client, Registrar and Matcher.
"Here" marks where Roskva deliberately differs. Not in the table: the authorization hooks of 3.2 and several data centers (4.3) are not
built yet.

This file is written from the tests: `python -m tests.paper.table > docs/paper.md`; a test keeps it up to date.

| section | claim | test |
|---|---|---|
"""


class Claim(NamedTuple):
    section: tuple[int, ...]
    file: str
    line: int
    test: str
    text: str


def claims() -> list[Claim]:
    """The tests of this folder, in the order of the paper's sections."""
    found = []
    for file in sorted(FOLDER.glob("test_[0-9]*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (match := _NAME.match(node.name)):
                section = tuple(int(number) for number in match[1].rstrip("_").split("_"))
                found.append(Claim(section, file.name, node.lineno, node.name, " ".join((ast.get_docstring(node) or "").split())))
    return sorted(found)


def document() -> str:
    rows = [f"| {'.'.join(map(str, claim.section))} | {claim.text} | [`{claim.test}`](../tests/paper/{claim.file}) |" for claim in claims()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(document(), end="")
