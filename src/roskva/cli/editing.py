"""Changes to the settings file by commands: comments and order stay, and nothing that the service would refuse takes its place.

Written aside, checked, then moved into place, so that a service that looks meanwhile sees the old file or the new one. Commands that edit
at the same time wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from roskva.config import Settings, load
from roskva.durable import sync_directory
from roskva.errors import BadRequest, InvalidSetting

IMPLICIT: Final = "demo"  # the application that is there as long as no file names any
_TABLES: Final = "applications"


class Unchanged(BadRequest):
    """The file stays as it is: what was asked for does not fit what is in it."""

    advice = ""

    def __str__(self) -> str:
        return self.what


@contextlib.contextmanager
def edited(file: Path, check: Callable[[Settings], None] = lambda settings: None) -> Iterator[tomlkit.TOMLDocument]:
    """The file's contents, to be changed; what they are in the end becomes the file, if the service and `check` have nothing against it."""
    file = file.resolve()  # the file itself, not a link to it
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file.parent):
            document = _read(file)
            yield document
            _replace(file, tomlkit.dumps(document), check)
    except OSError as error:
        raise InvalidSetting(f"The settings file {file} cannot be changed: {error.strerror or error}.") from None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(file: Path) -> tomlkit.TOMLDocument:
    if not file.exists():
        return tomlkit.document()
    load(file, {}, {})  # says clearly what is wrong with it
    try:
        return tomlkit.parse(file.read_text(encoding="utf-8"))
    except (TOMLKitError, ValueError) as error:
        raise InvalidSetting(f"The settings file {file} is not TOML: {error}.") from None


def _replace(file: Path, text: str, check: Callable[[Settings], None]) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        try:
            check(load(aside, {}, {}))
        except InvalidSetting as error:
            raise InvalidSetting(error.what.replace(str(aside), str(file))) from None
        if file.exists():
            before = file.stat()
            aside.chmod(before.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.chown(aside, before.st_uid, before.st_gid)
        os.replace(aside, file)
        sync_directory(file.parent)
    finally:
        aside.unlink(missing_ok=True)


def application_in(document: tomlkit.TOMLDocument, name: str) -> Table:
    """The table of an application, to be changed. The one that is there without a file gets one."""
    tables = document.get(_TABLES, {})
    if name in tables:
        table: Table = tables[name]
        return table
    if not tables and name == IMPLICIT:
        return add_application(document, name)
    raise Unchanged(f"There is no application {name!r} in the settings file. `roskva app list` shows them, `roskva app create` makes one.")


def add_application(document: tomlkit.TOMLDocument, name: str) -> Table:
    if _TABLES not in document:
        document.add(_TABLES, tomlkit.table(is_super_table=True))
    table = tomlkit.table()
    document[_TABLES].append(name, table)
    return table
