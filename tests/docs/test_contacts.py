"""examples/contacts: its README shows exactly what differs between the two programs."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "contacts"


@pytest.mark.parametrize(("name", "who"), [("backend.py", "backend"), ("client.py", "client")])
def test_the_readme_shows_what_was_changed(name: str, who: str) -> None:
    before, after = [(FOLDER / kind / name).read_text().splitlines() for kind in ("polling", "live")]
    lines = list(difflib.unified_diff(before, after, f"polling/{name}", f"live/{name}", n=0, lineterm=""))
    readme = (FOLDER / "README.md").read_text()
    assert "```diff\n" + "\n".join(lines) + "\n```" in readme
    added = sum(line.startswith("+") for line in lines[2:])
    removed = sum(line.startswith("-") for line in lines[2:])
    assert re.search(rf"^The {who}: {added} lines added, {removed} taken away\.", readme, re.MULTILINE)
