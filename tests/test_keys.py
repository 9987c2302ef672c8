"""The file of keys: made once, the same for everybody, readable by its owner only (keys.py)."""

from __future__ import annotations

import base64
import json
import multiprocessing
from pathlib import Path

import pytest

from roskva.errors import KeysUnusable
from roskva.keys import administration, load_keys, trusted_key
from roskva.protocol.tokens import Claims, Keyring

CLAIMS = Claims("client", "demo", "device", 1, "local", 1)  # type: ignore[arg-type]


def test_made_once_and_kept(tmp_path: Path) -> None:
    first = load_keys(tmp_path / "new" / "data")
    second = load_keys(tmp_path / "new" / "data")
    assert second.keyring.verify(first.keyring.sign(CLAIMS)) == CLAIMS
    assert second.internal == first.internal
    assert len(first.internal) == 32
    assert (second.trusted, second.admin) == (first.trusted, first.admin)
    assert len({first.admin, first.trusted, base64.b64encode(first.internal).decode()}) == 3
    path = tmp_path / "new" / "data" / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["keys.json"]


def _load(data: str, answers: multiprocessing.Queue[str], start: multiprocessing.synchronize.Barrier) -> None:
    start.wait(20)
    keys = load_keys(Path(data))
    answers.put(keys.internal.hex() + keys.admin + keys.keyring.sign(CLAIMS))


def _of_an_earlier_version(data: Path) -> dict[str, object]:
    load_keys(data)
    stored: dict[str, object] = json.loads((data / "keys.json").read_text())
    del stored["admin"]
    (data / "keys.json").write_text(json.dumps(stored))
    return stored


@pytest.mark.parametrize("earlier", [False, True])
def test_processes_that_start_at_once_get_the_same(tmp_path: Path, earlier: bool) -> None:
    if earlier:
        _of_an_earlier_version(tmp_path / "data")
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
    assert load_keys(tmp_path / "data").admin in found.pop()


def test_a_file_without_the_key_of_operators_gets_one_and_keeps_the_rest(tmp_path: Path) -> None:
    stored = _of_an_earlier_version(tmp_path)
    assert administration(tmp_path) == {}  # a look changes nothing
    admin = load_keys(tmp_path).admin
    assert json.loads((tmp_path / "keys.json").read_text()) == stored | {"admin": admin}
    assert administration(tmp_path) == {"Authorization": f"Bearer {admin}"}
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["keys.json"]


def test_a_look_at_nothing_makes_nothing(tmp_path: Path) -> None:
    assert administration(tmp_path / "data") == {}
    assert list(tmp_path.iterdir()) == []


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
        '{"signing": {"1": "' + "a" * 44 + '"}, "internal": "' + "a" * 44 + '", "admin": "c2hvcnQ="}',
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


def test_the_key_of_trusted_servers_is_read_without_making_any(tmp_path: Path) -> None:
    assert trusted_key(tmp_path / "data") == ""
    assert not (tmp_path / "data").exists()
    assert load_keys(tmp_path / "data").trusted == trusted_key(tmp_path / "data") != ""
