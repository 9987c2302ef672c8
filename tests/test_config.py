"""Settings: where they come from, which one wins, and what is said about those that do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from roskva.config import ApplicationSettings, Settings, load, reference
from roskva.errors import InvalidSetting

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "roskva.toml"


def refused(file: Path | None, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidSetting) as caught:
        load(file, environ or {}, flags or {})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_anything_the_defaults_hold_and_demo_exists() -> None:
    assert load(None, {}, {}) == Settings()
    assert load(None, {}, {}).applications == {"demo": ApplicationSettings()}


def test_flags_win_over_environment_and_environment_over_file(file: Path) -> None:
    file.write_text('partitions = 2\nscan_s = 3\nlog_level = "error"\n')
    settings = load(file, {"ROSKVA_SCAN_S": "4", "ROSKVA_LOG_LEVEL": "debug"}, {"log_level": "warning"})
    assert (settings.partitions, settings.scan_s, settings.log_level) == (2, 4.0, "warning")


def test_values_have_the_type_of_their_setting(file: Path) -> None:
    file.write_text('data = "~/here"\nscan_s = 3\npartitions = 2\n')
    settings = load(file, {}, {})
    assert settings.data == Path("~/here").expanduser()
    assert isinstance(settings.scan_s, float)
    assert isinstance(load(None, {}, {"partitions": "8"}).partitions, int)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1 GiB", 1 << 30), ("64MiB", 64 << 20), ("1.5 mib", 3 << 19), ("70000", 70_000), ("1_000_000", 1_000_000)],
)
def test_sizes_may_be_written_for_people(file: Path, text: str, size: int) -> None:
    file.write_text(f'feed_bytes_max = "{text}"\n')
    assert load(file, {}, {}).feed_bytes_max == size


def test_a_file_with_applications_replaces_demo(file: Path) -> None:
    file.write_text('[applications.shop]\nheartbeat_s = 60\nobject_path = "article.id"\n[applications.news]\n')
    applications = load(file, {}, {}).applications
    assert applications == {
        "shop": ApplicationSettings(heartbeat_s=60.0, object_path="article.id"),
        "news": ApplicationSettings(),
    }


def test_unknown_keys_are_refused_with_place_and_suggestion(file: Path) -> None:
    file.write_text("partition = 4\n")
    message = refused(file)
    assert str(file) in message
    assert "'partition'" in message
    assert "Did you mean 'partitions'?" in message
    assert "docs/settings.md" in message


def test_unknown_keys_of_applications_are_refused_with_their_table(file: Path) -> None:
    file.write_text("[applications.shop]\nheart_beat_s = 60\n")
    message = refused(file)
    assert "[applications.shop]" in message
    assert "Did you mean 'heartbeat_s'?" in message


def test_a_setting_in_the_wrong_table_is_told_where_it_belongs(file: Path) -> None:
    file.write_text("quiet_s = 1\n")
    assert "belongs into a table [applications.NAME]" in refused(file)
    file.write_text("[applications.shop]\npartitions = 1\n")
    assert "belongs to the top of the file" in refused(file)


def test_unknown_variables_with_our_prefix_are_refused() -> None:
    message = refused(None, {"ROSKVA_PARTITION": "4", "HOME": "/"})
    assert "ROSKVA_PARTITION" in message
    assert "Did you mean 'ROSKVA_PARTITIONS'?" in message


def test_variables_that_are_no_settings_are_left_alone() -> None:
    assert load(None, {"ROSKVA_URL": "http://x", "ROSKVA_TEST_SEED": "7", "ROSKVA_RUN": "a"}, {}) == Settings()


@pytest.mark.parametrize(
    "text",
    [
        'partitions = "four"',
        "partitions = 2.5",
        "partitions = true",
        "partitions = 0",
        "partitions = 100000",
        "scan_s = 0",
        "scan_s = -1",
        "scan_s = nan",
        "scan_s = inf",
        "scan_s = 1e300",
        "scan_s = 1" + "0" * 400,
        "scan_s = 1" + "0" * 5_000,
        'partitions = "1' + "0" * 5_000 + '"',
        'scan_s = "60 s"',
        "feed_retention_s = -1",
        'feed_bytes_max = "1 furlong"',
        'listen = "8470"',
        'listen = "127.0.0.1:99999"',
        'listen = "a b:1"',
        'log_level = "loud"',
        'data = ""',
        "data = 7",
        'data = "~nobody-of-this-name/x"',
        'data = "\\u0000"',
        'data_center = "Über all"',
        'pipeline_memory = "lots"',
        "member_heartbeat_s = 10\nmember_timeout_s = 5",
        "applications = 7",
        "[applications]\nshop = 7",
        "[applications.Shop]",
        '[applications.shop]\nobject_path = "a..b"',
        "[applications.shop]\nretry_min_s = 5\nretry_max_s = 1",
        "[applications.shop]\nheartbeat_s = 5000",
        "[partitions]\nx = 1",
        "not toml",
        "x = " + "[" * 5_000,
    ],
)
def test_what_does_not_fit_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    refused(file)


def test_a_missing_file_is_named(file: Path) -> None:
    assert str(file) in refused(file)


def test_a_file_of_another_encoding_is_refused(file: Path) -> None:
    file.write_bytes(b'data = "\xff\xfe"')
    assert "not TOML" in refused(file)


@pytest.mark.parametrize("address", ["127.0.0.1:8470", "[::1]:0", "localhost:80"])
def test_addresses(address: str) -> None:
    assert load(None, {}, {"listen": address}).listen == address


def test_every_default_passes_its_own_check() -> None:
    written = {item.name: item.default for item in fields(Settings) if item.name != "applications"}
    flags = {name: ",".join(default) if isinstance(default, tuple) else str(default) for name, default in written.items()}
    assert load(None, {}, flags) == Settings()


def test_the_reference_is_up_to_date_and_names_every_setting() -> None:
    written = (ROOT / "docs/settings.md").read_text()
    assert written == reference(), "run: python -m roskva.config > docs/settings.md"
    for kind in (Settings, ApplicationSettings):
        for item in fields(kind):
            assert item.name == "applications" or f"| `{item.name}` |" in written


def test_the_example_of_the_reference_loads(file: Path) -> None:
    example = reference().split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(example)
    file.write_text(example)
    assert load(file, {}, {}).applications["shop"].object_path == "article.id"


def test_the_module_prints_the_reference() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "roskva.config"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert printed.stdout == reference()


def test_an_object_is_not_forgotten_while_its_updates_could_be_replayed() -> None:
    """Trap 30: the feed's retention, in whole days, and the longest outage."""
    assert Settings().replay_days == 8
    assert load(None, {}, {"feed_retention_s": "86401", "object_retention_days": "9"}).replay_days == 9
    with pytest.raises(InvalidSetting, match="object_retention_days"):
        load(None, {}, {"feed_retention_s": "86401", "object_retention_days": "8"})
