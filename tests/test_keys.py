"""The file of keys: made once, the same for everybody, readable by its owner only (keys.py)."""

from __future__ import annotations

import base64
import json
import multiprocessing
from pathlib import Path

import pytest

from roskva.errors import KeysUnusable
from roskva.keys import load_keys
from roskva.protocol.tokens import Claims, Keyring

CLAIMS = Claims("client", "demo", "device", 1, "local", 1)  # type: ignore[arg-type]


def test_made_once_and_kept(tmp_path: Path) -> None:
    first = load_keys(tmp_path / "new" / "data")
    second = load_keys(tmp_path / "new" / "data")
    assert second.keyring.verify(first.keyring.sign(CLAIMS)) == CLAIMS
    assert second.internal == first.internal
    assert len(first.internal) == 32
    path = tmp_path / "new" / "data" / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["keys.json"]


def _load(data: str, answers: multiprocessing.Queue[str], start: multiprocessing.synchronize.Barrier) -> None:
    start.wait(20)
    keys = load_keys(Path(data))
    answers.put(keys.internal.hex() + keys.keyring.sign(CLAIMS))


def test_processes_that_start_at_once_get_the_same(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    start = context.Barrier(6)
    processes = [context.Process(target=_load, args=(str(tmp_path / "data"), answers, start)) for _ in range(6)]
    for process in processes:
        process.start()
    found = {answers.get(timeout=20) for _ in processes}
    for process in processes:
        process.join(20)
    assert len(found) == 1


def test_rotation_newest_signs_all_verify(tmp_path: Path) -> None:
    old = load_keys(tmp_path)
    token = old.keyring.sign(CLAIMS)
    path = tmp_path / "keys.json"
    stored = json.loads(path.read_text())
    stored["signing"]["2"] = base64.b64encode(b"n" * 32).decode()
    path.write_text(json.dumps(stored))
    new = load_keys(tmp_path)
    assert new.keyring.verify(token) == CLAIMS
    assert Keyring({2: b"n" * 32}).verify(new.keyring.sign(CLAIMS)) == CLAIMS


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"signing": {}, "internal": "aaaa"}',
        '{"signing": {"x": "aaaa"}, "internal": "aaaa"}',
        '{"signing": {"1": "***"}, "internal": "' + "a" * 44 + '"}',
        '{"signing": {"1": "' + "a" * 44 + '"}, "internal": "c2hvcnQ="}',
        '{"signing": {"1": "' + "a" * 44 + '"}}',
    ],
)
def test_unusable_file_is_refused_clearly(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(KeysUnusable) as refused:
        load_keys(tmp_path)
    assert "keys.json" in str(refused.value)
    assert (tmp_path / "keys.json").read_text() == content  # never replaced by itself


def test_directory_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "keys.json").mkdir()
    with pytest.raises(KeysUnusable):
        load_keys(tmp_path)
