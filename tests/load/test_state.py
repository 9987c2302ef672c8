"""The tokens of a crowd in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.errors import BadRequest
from roskva.load.plan import Plan
from roskva.load.state import read_tokens, write_tokens


def test_tokens_come_back_in_their_places_also_into_a_larger_or_smaller_crowd(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_tokens(path, Plan(2)) == ["", ""]
    write_tokens(path, Plan(3), ["a", "", "c"])
    assert read_tokens(path, Plan(3)) == ["a", "", "c"]
    assert read_tokens(path, Plan(5)) == ["a", "", "c", "", ""]
    assert read_tokens(path, Plan(1)) == ["a"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_of_others_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_tokens(path, Plan(1, application="shop"), ["a"])
    with pytest.raises(BadRequest, match="other clients"):
        read_tokens(path, Plan(1))
    path.write_text("hello\nworld")
    with pytest.raises(BadRequest, match="not a state file"):
        read_tokens(path, Plan(1))
    with pytest.raises(BadRequest, match="cannot be written"):
        write_tokens(tmp_path / "none" / "state", Plan(1), ["a"])
