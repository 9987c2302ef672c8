"""`python -m tests.transcripts.rewrite [NAME ...]` writes what the transcripts' commands answer now: read the difference, then keep it."""

from __future__ import annotations

import sys

from tests.transcripts.script import PATHS, rewritten


def main(names: list[str]) -> None:
    for path in PATHS:
        if names and path.stem not in names:
            continue
        before = path.read_text(encoding="utf-8")
        after = rewritten(before)
        path.write_text(after, encoding="utf-8")
        print(path.stem, "changed" if after != before else "as it was")


if __name__ == "__main__":
    main(sys.argv[1:])
