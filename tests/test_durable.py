"""A file's name is durable only when its directory was synced, after the name was put there; and who may look into what we make."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from roskva.cli.keeping import data_directory
from roskva.client.statefile import StateFile
from roskva.config import Settings
from roskva.durable import private_directory, sync_directory
from roskva.keys import load_keys
from roskva.table import open_manifest


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


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def hold(directory: Path) -> None:
    with data_directory(directory, "data", "up.lock", "roskva up", 0.0):
        pass


def open_and_close(directory: Path) -> None:
    open_manifest(Settings(data=directory)).close()


@pytest.mark.parametrize("make", [private_directory, load_keys, hold, open_and_close])
def test_a_data_directory_that_we_make_is_for_its_owner_alone(make: Callable[[Path], object], tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make(tmp_path / "above" / "data")
        assert mode(tmp_path / "above" / "data") == 0o700
        assert mode(tmp_path / "above") == 0o700
        theirs = tmp_path / "theirs"
        theirs.mkdir(mode=0o750)
        make(theirs)
        assert mode(theirs) == 0o750
    finally:
        os.umask(before)


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(OSError, match="file"):
            private_directory(directory)
