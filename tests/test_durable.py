"""A file's name is durable only when its directory was synced, after the name was put there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from roskva.client.statefile import StateFile
from roskva.durable import sync_directory
from roskva.keys import load_keys


def write_state(directory: Path) -> None:
    StateFile(directory / "keys.json").write(b"state")


@pytest.mark.parametrize("write", [load_keys, write_state], ids=["the keys", "a client's state"])
def test_the_directory_is_synced_after_the_file_has_its_name(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / "keys.json").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write(tmp_path)
    assert [named for _, named in synced] == [False, True]  # first the content, under another name
    assert synced[-1][0] == tmp_path.stat().st_ino


def test_a_directory_that_is_not_there_or_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")
