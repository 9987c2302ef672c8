"""`roskva app` and `roskva user revoke`: what becomes of the settings file (cli/apps.py, cli/users.py, cli/editing.py)."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from roskva.access.publish_keys import is_one_of
from roskva.cli import main
from roskva.config import ApplicationSettings, load
from tests.access.service import pem


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROSKVA_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def file(here: Path) -> Path:
    return here / "roskva.toml"


def applications(file: Path) -> dict[str, ApplicationSettings]:
    return dict(load(file, {}, {}).applications)


COMMENTED = """\
# Ours.
data = "/var/lib/roskva"  # the fast disk

[applications.wiki]  # since 2024
heartbeat_s = 600 # ten minutes
"""


def test_the_first_application_keeps_the_demo_and_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "create", "shop"]) == 0
    said = capsys.readouterr()
    key = said.out.strip()
    found = applications(file)
    assert list(found) == ["demo", "shop"]
    assert is_one_of(key, found["shop"].publish_keys)
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "[applications.demo]" in said.err
    assert "within 3 s" in said.err
    assert main(["app", "create", "blog"]) == 0
    assert "demo" not in capsys.readouterr().err
    assert [one.name for one in file.parent.iterdir()] == ["roskva.toml"]


def test_what_was_in_the_file_stays_as_it_was(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(COMMENTED)
    file.chmod(0o640)
    assert main(["app", "create", "shop", "--origin", "https://shop.example", "--origin", "https://m.shop.example"]) == 0
    assert file.read_text().startswith(COMMENTED)
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(applications(file)) == ["wiki", "shop"]
    assert applications(file)["shop"].origins == ("https://shop.example", "https://m.shop.example")
    assert main(["app", "key", "add", "wiki"]) == 0
    text = file.read_text()
    assert all(line in text for line in COMMENTED.splitlines())
    assert len(applications(file)["wiki"].publish_keys) == 1
    assert applications(file)["wiki"].heartbeat_s == 600


@pytest.mark.parametrize("how", ["jwt", "webhook"])
def test_who_makes_an_application_with_users_hears_that_each_may_hear_everything(
    file: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "shop.pem").write_bytes(pem(Ed25519PrivateKey.generate()))
    given = {"jwt": ["--jwt-keys", "shop.pem"], "webhook": ["--webhook", "https://shop.example/who"]}[how]
    assert main(["app", "create", "shop", "--auth", how, *given]) == 0
    said = capsys.readouterr()
    assert applications(file)["shop"].registrable == ("*",)
    assert "Every user of shop may register for every object" in said.err
    line = said.err.partition("such as: ")[2].splitlines()[0]
    file.write_text(file.read_text().replace("[applications.shop]\n", f"[applications.shop]\n{line}\n"))
    assert applications(file)["shop"].registrable == ("news:*", "inbox:{sub}")
    assert len(said.out.split()) == 1
    assert main(["app", "create", "blog"]) == 0
    assert "Every user" not in capsys.readouterr().err


REFUSED = [
    (["create", "wiki"], "already"),
    (["create", "WIKI"], "WIKI"),
    (["create", "shop", "--auth", "jwt"], "--jwt-keys"),
    (["create", "shop", "--auth", "jwt", "--jwt-keys", "/nowhere/k.pem"], "/nowhere/k.pem"),
    (["create", "shop", "--jwt-keys", "k.pem"], "--auth jwt"),
    (["create", "shop", "--auth", "webhook"], "--webhook"),
    (["create", "shop", "--origin", "shop.example/"], "origin"),
    (["key", "add", "shop"], "no application 'shop'"),
    (["key", "list", "shop"], "no application 'shop'"),
    (["key", "remove", "wiki", "ab"], "0 keys"),
]


@pytest.mark.parametrize(("arguments", "word"), REFUSED)
def test_what_does_not_fit_changes_nothing(arguments: list[str], word: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(COMMENTED)
    assert main(["app", *arguments]) != 0
    said = capsys.readouterr()
    assert word in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert file.read_text() == COMMENTED
    assert [one.name for one in file.parent.iterdir()] == ["roskva.toml"]


def test_a_file_that_is_wrong_already_is_not_touched(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("nonsense", "partition = 4\n"):
        file.write_text(text)
        assert main(["app", "create", "shop"]) == 2
        assert "roskva.toml" in capsys.readouterr().err
        assert file.read_text() == text


def test_keys_come_and_go(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", "key", "add", "demo"]) == 0  # without a file: it is the one that is there
    said = capsys.readouterr()
    assert "the first" in said.err
    old = said.out.strip()
    assert main(["app", "key", "add", "demo"]) == 0
    new = capsys.readouterr().out.strip()
    assert all(is_one_of(key, applications(file)["demo"].publish_keys) for key in (old, new))
    assert main(["app", "key", "list", "demo"]) == 0
    prefixes = capsys.readouterr().out.split()
    assert [len(prefix) for prefix in prefixes] == [12, 12]
    assert main(["app", "key", "remove", "demo", "sha256:" + prefixes[0][:8]]) == 0
    assert not is_one_of(old, applications(file)["demo"].publish_keys)
    assert is_one_of(new, applications(file)["demo"].publish_keys)
    capsys.readouterr()
    assert main(["app", "key", "remove", "demo", prefixes[1]]) == 1
    assert "last key" in capsys.readouterr().err
    assert main(["app", "key", "remove", "demo", prefixes[1], "--force"]) == 0
    assert applications(file)["demo"].publish_keys == ()


def test_a_prefix_of_several_keys_removes_none(file: Path) -> None:
    for _ in range(2):
        assert main(["app", "key", "add", "demo"]) == 0
    assert main(["app", "key", "remove", "demo", ""]) == 1
    assert len(applications(file)["demo"].publish_keys) == 2


def test_the_list_says_what_is_open(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[applications.open]\n")
    assert main(["app", "create", "shop"]) == 0
    capsys.readouterr()
    assert main(["app", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["open", "shop"]
    assert "anybody may publish" in lines[0]
    assert "1 publish keys" in lines[1]


def test_a_file_of_another_name_and_one_behind_a_link(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = here / "etc" / "real.toml"
    assert main(["app", "create", "shop", "--config", str(real)]) == 0
    link = here / "link.toml"
    link.symlink_to(real)
    assert main(["app", "create", "wiki", "--config", str(link)]) == 0
    assert link.is_symlink()
    assert list(applications(real)) == ["demo", "shop", "wiki"]


def _create(folder: str, number: int) -> None:
    raise SystemExit(main(["app", "create", f"app{number}", "--config", f"{folder}/roskva.toml"]))


def test_commands_at_the_same_time_lose_nothing(file: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_create, args=(str(file.parent), number)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 6
    assert sorted(applications(file)) == sorted(["demo", *(f"app{number}" for number in range(6))])


USERS = '[applications.shop]\nauthentication = "webhook"\nauthentication_webhook = "http://127.0.0.1:9/who"\n'


def test_revoked_users_are_added_and_raised(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(USERS + 'revoked_users = ["bob@17", "ann@5"]  # by hand\n')
    before_s = time.time()
    assert main(["user", "revoke", "shop", "ann"]) == 0
    assert "within 3 s" in capsys.readouterr().out
    assert main(["user", "revoke", "shop", "a@b.example"]) == 0
    found = dict(one.rsplit("@", 1) for one in applications(file)["shop"].revoked_users)
    assert found["bob"] == "17"
    assert before_s < int(found["ann"]) <= time.time() + 1
    assert before_s < int(found["a@b.example"]) <= time.time() + 1
    assert len(found) == 3


def test_whoever_revokes_tokens_is_told_from_when_on_new_ones_count(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(USERS)
    assert main(["user", "revoke", "shop", "ann"]) == 0
    assert "jwt_leeway_s" not in capsys.readouterr().out  # a webhook is asked, by the gateway's own clock
    file.write_text('[applications.shop]\nauthentication = "jwt"\njwt_keys = "shop.pem"\njwt_leeway_s = 7\n')
    assert main(["user", "revoke", "shop", "ann"]) == 0
    assert "within 7 s from now (jwt_leeway_s)" in capsys.readouterr().out


def test_where_nobody_is_asked_there_is_nothing_to_revoke(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "revoke", "demo", "ann"]) == 1
    assert "nothing to revoke" in capsys.readouterr().err
    assert not file.exists()
    assert main(["user", "revoke", "shop", "ann"]) == 1
    file.write_text(USERS)
    assert main(["user", "revoke", "shop", ""]) == 1
    assert file.read_text() == USERS
