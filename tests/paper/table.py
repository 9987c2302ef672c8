"""docs/paper.md: which claim of the papers is checked by which test. Written from the tests by `python -m tests.paper.table`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
DOCUMENT: Final = FOLDER.parent.parent / "docs" / "paper.md"
_NAME: Final = re.compile(r"test_(table_)?((?:\d+_)+)")

HEAD: Final = """\
# The papers, claim by claim

What Thialfi and Wormhole claim, in our words or theirs, and the test that checks it here. "Here" marks where Roskva deliberately differs.

This file is written from the tests: `python -m tests.paper.table > docs/paper.md`; a test keeps it up to date.
"""


class Paper(NamedTuple):
    name: str
    files: str  # a pattern for those of this folder
    about: str


PAPERS: Final = (
    Paper(
        "Thialfi",
        "test_[0-9]*.py",
        """\
Thialfi: A Client Notification Service for Internet-Scale Applications (SOSP 2011). Every claim of sections 3, 4.1, 4.2 and 5
that concerns one data center, run against the real cores of client, Registrar and Matcher. Not in the table: the authorization hooks of
3.2, which have tests of their own ([security.md](security.md)), and several data centers (4.3), which are not built yet. What the paper
measures is in [performance.md](performance.md).""",
    ),
    Paper(
        "Wormhole",
        "test_wormhole_[0-9]*.py",
        """\
Wormhole: Reliable Pub-Sub to Support Geo-replicated Internet Services (NSDI 2015), which [capture](capture.md) follows. Claims of
sections 2, 3 and 5 that say something of a system like ours: run against the publisher's core, real publishers and subscribers, and in
simulated worlds ([correctness.md](correctness.md#capture)). Section 4 is what the paper measures
([performance.md](performance.md#capture)).""",
    ),
)


class Claim(NamedTuple):
    section: tuple[int, ...]
    table: bool  # a table of the paper, not a section
    file: str
    line: int
    test: str
    text: str

    @property
    def place(self) -> str:
        return ("Table " if self.table else "") + ".".join(map(str, self.section))


def claims(paper: Paper) -> list[Claim]:
    """Its tests, in the order of its sections; what its tables say comes last."""
    found = []
    for file in sorted(FOLDER.glob(paper.files)):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := _NAME.match(node.name)):
                section = tuple(int(number) for number in match[2].rstrip("_").split("_"))
                text = " ".join((ast.get_docstring(node) or "").split())
                found.append(Claim(section, match[1] is not None, file.name, node.lineno, node.name, text))
    return sorted(found, key=lambda claim: (claim.table, claim))


def document() -> str:
    parts = [HEAD]
    for paper in PAPERS:
        rows = [f"| {claim.place} | {claim.text} | [`{claim.test}`](../tests/paper/{claim.file}) |\n" for claim in claims(paper)]
        parts.append(f"\n## {paper.name}\n\n{paper.about}\n\n| section | claim | test |\n|---|---|---|\n" + "".join(rows))
    return "".join(parts)


if __name__ == "__main__":
    print(document(), end="")
