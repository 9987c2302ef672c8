"""`python -m tests.conformance.freeze 2` freezes docs/transcripts as those of protocol version 2, with whole lists, for ever.

A frozen version is never written again: tests/conformance/test_frozen.py knows the sum of each.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tests.protocol.replay import TRANSCRIPTS, replayed

FROZEN = Path(__file__).parents[2] / "src" / "roskva" / "conformance"
SUMS = "SHA256SUMS"


def freeze(version: int) -> None:
    folder = FROZEN / f"v{version}"
    folder.mkdir()
    sums = []
    for path in sorted(TRANSCRIPTS.glob("*.txt")):
        text = replayed(path.read_text(encoding="utf-8"), shown_max=sys.maxsize).replace("# (Long lists are shortened here.)\n", "")
        (folder / path.name).write_text(text, encoding="utf-8")
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")
    print(f"{len(sums)} transcripts; {SUMS} has {hashlib.sha256((folder / SUMS).read_bytes()).hexdigest()}")


if __name__ == "__main__":
    freeze(int(sys.argv[1]))
