"""`roskva doctor`: every check can be ok and can fail, and says how to fix it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.cli import doctor, gateways, main
from roskva.cli.doctor import FAIL, OK, WARN, Check
from roskva.config import Settings
from roskva.durable import private_directory
from roskva.keys import load_keys
from roskva.table import open_manifest


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", listen="127.0.0.1:0")


def test_every_check_says_what_it_found_and_how_to_fix_it(settings: Settings) -> None:
    for check in doctor.CHECKS:
        found = check(settings)
        assert found.state in (OK, WARN, FAIL)
        assert found.what
        assert (found.state == OK) == (not found.fix), found


def test_it_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    for check in doctor.CHECKS:
        check(settings)
    assert list(tmp_path.iterdir()) == []


def test_exit_status_and_json(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def passes(settings: Settings) -> Check:
        return Check("a", WARN, "so so", "do it")

    def fails(settings: Settings) -> Check:
        return Check("b", FAIL, "bad", "mend it")

    monkeypatch.setattr(doctor, "CHECKS", (passes,))
    assert main(["doctor", "--data", str(settings.data)]) == 0
    assert "-> do it" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "CHECKS", (passes, fails))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1] == {"name": "b", "state": "fail", "what": "bad", "fix": "mend it"}


def test_java_that_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from roskva.errors import JavaMissing
    from roskva.pipeline import session

    def none() -> Path:
        raise JavaMissing("There is none.")

    monkeypatch.setattr(session, "find_java_home", none)
    found = doctor.check_java(settings)
    assert (found.state, "openjdk-17" in found.fix) == (FAIL, True)


def test_packages_that_are_missing_or_not_as_pinned(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("msgspec", "no-such-package"))
    assert doctor.check_packages(settings).state == FAIL
    monkeypatch.setattr(doctor, "_PACKAGES", ("msgspec",))
    monkeypatch.setattr(doctor, "_pins", lambda: {"msgspec": "0.0.1"})
    assert "needs 0.0.1" in doctor.check_packages(settings).what


def test_a_port_that_another_program_holds(settings: Settings) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        found = doctor.check_port(replace(settings, listen=listen))
    assert found.state == FAIL
    assert listen in found.what


def test_a_data_directory_that_is_a_file(settings: Settings) -> None:
    settings.data.write_text("")
    assert doctor.check_directory(settings).state == FAIL


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_that_cannot_be_written(settings: Settings) -> None:
    settings.data.mkdir(mode=0o500)
    assert doctor.check_directory(settings).state == FAIL


def test_a_manifest_that_is_sound_or_of_other_settings_or_damaged(settings: Settings) -> None:
    settings.data.mkdir()
    open_manifest(settings).ensure("table", ["registrar"])
    assert doctor.check_manifest(settings) == Check("manifest", OK, f"partitions: {settings.partitions} complete")
    assert doctor.check_manifest(replace(settings, partitions=8)).state == FAIL
    assert doctor.check_manifest(replace(settings, data_center="other")).state == FAIL
    open_manifest(settings).record_lost("table", "registrar", 0, open_manifest(settings).record("table", "registrar", 0).incarnation)
    assert doctor.check_manifest(settings).state == WARN
    (settings.data / "manifest.db").write_bytes(b"\0" * 4_096)
    assert doctor.check_manifest(settings).state == WARN


def test_memory_and_slow_disks_are_warned_of(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_file_system", lambda _: "tmpfs")
    assert doctor.check_sync(settings).state == WARN
    monkeypatch.setattr(doctor, "_file_system", lambda _: "ext4")
    monkeypatch.setattr(doctor, "_measure_fsync_ms", lambda _: 80.0)
    assert "slow" in doctor.check_sync(settings).what


def test_the_file_system_is_the_one_that_holds_the_path() -> None:
    assert doctor._file_system(Path("/proc/self")) == "proc"


def test_little_space(settings: Settings) -> None:
    assert doctor.check_space(replace(settings, feed_bytes_max=1 << 60)).state == WARN


def test_few_files(settings: Settings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert doctor.check_files(replace(settings, connections_max=10)).state == OK
    assert doctor.check_files(replace(settings, connections_max=1 << 30)).state == WARN
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_more_gateways_than_the_machine_can_run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(gateways, "_CGROUPS", settings.data)  # where nothing is said of limits
    monkeypatch.setattr(doctor, "machine_memory_bytes", lambda: 8 << 30)
    assert doctor.check_gateways(settings) == doctor.Check("gateways", OK, "2 on 4 cores")
    assert doctor.check_gateways(replace(settings, gateways=5)).state == WARN
    assert doctor.check_gateways(replace(settings, gateway_memory_bytes_max=5 << 30)).state == WARN
    assert doctor.check_gateways(replace(settings, internal_listen="127.0.0.1:65535")).state == FAIL


def test_what_others_can_read(settings: Settings, tmp_path: Path) -> None:
    assert doctor.check_secrets(settings).state == OK  # nothing is there yet
    load_keys(settings.data)
    assert doctor.check_secrets(settings).state == OK
    keys, run, tls_key = settings.data / "keys.json", settings.data / "run", tmp_path / "tls.pem"
    private_directory(run)
    tls_key.write_text("")
    tls_key.chmod(0o640)
    settings = replace(settings, tls_key=str(tls_key))
    assert doctor.check_secrets(settings).state == OK
    for path, bad, fix in ((settings.data, 0o755, "o-rwx"), (keys, 0o640, "go-rwx"), (run, 0o750, "go-rwx"), (tls_key, 0o644, "o-rwx")):
        good = path.stat().st_mode & 0o777
        path.chmod(bad)
        found = doctor.check_secrets(settings)
        assert (found.state, found.fix) == (WARN, f"chmod {fix} {path}")
        assert str(path) in found.what
        path.chmod(good)
    assert doctor.check_secrets(settings).state == OK
