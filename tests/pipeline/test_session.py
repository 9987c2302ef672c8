"""Finding Java, and the settings of the session. No Spark is started here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roskva.errors import JavaMissing
from roskva.pipeline.session import find_java_home, java_version, scratch_folder, spark_settings
from tests.pipeline.standin import settings_for


def install(home: Path, version: str | None) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_comes_first_if_it_fits(tmp_path: Path) -> None:
    home = install(tmp_path / "mine", "17.0.9")
    install(tmp_path / "jvm" / "other", "21")
    assert find_java_home({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "jvm") == home


def test_what_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    wrong = install(tmp_path / "wrong", "25.0.3")
    in_path = install(tmp_path / "old", "1.8.0_400")
    right = install(tmp_path / "jvm" / "b", "21.0.2")
    install(tmp_path / "jvm" / "a", "11.0.1")
    environment = {"JAVA_HOME": str(wrong), "PATH": str(in_path / "bin")}
    assert find_java_home(environment, tmp_path / "jvm") == right


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    assert java_version(install(tmp_path / "x", None)) == 21
    assert java_version(tmp_path / "nothing") is None


def test_without_java_the_error_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    install(tmp_path / "jvm" / "temurin", "25.0.3")
    with pytest.raises(JavaMissing) as caught:
        find_java_home({"PATH": ""}, tmp_path / "jvm")
    assert "temurin is version 25" in str(caught.value)
    assert "openjdk-17-jre-headless" in str(caught.value)


def test_folders_of_dead_drivers_are_removed(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    (tmp_path / "spark" / "999999999").mkdir(parents=True)
    (tmp_path / "spark" / "1").mkdir()
    mine = scratch_folder(settings)
    assert sorted(path.name for path in (tmp_path / "spark").iterdir()) == sorted(["1", str(os.getpid())])
    assert mine.is_dir()


def test_sockets_lie_where_their_path_fits(tmp_path: Path) -> None:
    """Spark takes a folder whose name has at most 60 characters."""
    for length, fits in ((10, True), (60, True), (61, False), (64, False), (80, False)):
        scratch = Path("/" + "x" * (length - 1))
        assert (spark_settings(settings_for(tmp_path), scratch)["spark.python.unix.domain.socket.dir"] == str(scratch)) is fits
