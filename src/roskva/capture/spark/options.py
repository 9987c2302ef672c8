"""What a query says about its source: the options of `spark.readStream.format("roskva_capture")`.

    publishers            HOST:PORT or unix:PATH, several with commas: all publishers of one dataset
    application           whose flows these are; one query has an application of its own, without max_age_s and real_time_only, for which
                          nothing can be read again
    keyFile               a file, on the driver's machine, with the key of the application; or
    secretKey             the key itself: Spark shows no option of this name in its plans and logs, as it would one called key
    shards                how many the dataset has; if it is given, it is logged which of them no publisher gives us
    maxUpdatesPerBatch    rows in one batch; default 20,000
    maxBytesPerBatch      of their text, about; default 16 MiB. An update that is larger makes a batch of its own
    failOnDataLoss        true (default): the query ends if updates are lost; false: a row of the operation data-loss says what is
    idleSeconds           after so long without updates an empty batch carries the datamarkers on, so that the database need not keep its
                          log for us; default 60
    tlsAuthority          a file of certificates: publishers are reached with TLS, and show one that these have signed

Names are read as Spark does, without regard to their case. Must not import Spark.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from roskva.address import host_and_port
from roskva.capture.wire import KEY_BYTES_MIN
from roskva.errors import InvalidSetting

UPDATES_MAX: Final = 20_000
BYTES_MAX: Final = 16 * 2**20
IDLE_S: Final = 60.0
# Spark's own, which it gives to every source, are let pass.
KNOWN: Final = (
    "publishers",
    "application",
    "keyFile",
    "secretKey",
    "shards",
    "maxUpdatesPerBatch",
    "maxBytesPerBatch",
    "failOnDataLoss",
    "idleSeconds",
    "tlsAuthority",
)


@dataclass(frozen=True, slots=True)
class Options:
    publishers: tuple[str, ...]
    application: str
    key: bytes = field(default=b"", repr=False)
    key_file: str = ""
    shards: int | None = None
    updates_max: int = UPDATES_MAX
    bytes_max: int = BYTES_MAX
    fail_on_data_loss: bool = True
    idle_s: float = IDLE_S
    tls_authority: str = ""

    def secret(self) -> bytes:
        """The key, from its file if it has one."""
        key = self.key
        if self.key_file:
            try:
                key = Path(self.key_file).read_text().strip().encode()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(
                    f"keyFile, {self.key_file}, cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}."
                ) from None
        if len(key) < KEY_BYTES_MIN:
            raise InvalidSetting(
                f"The key of the application {self.application!r} has {len(key)} bytes; it needs {KEY_BYTES_MIN} at least."
            )
        return key

    def tls(self) -> ssl.SSLContext | None:
        if not self.tls_authority:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_authority)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(f"tlsAuthority, {self.tls_authority}, cannot be read: {error}.") from None


def options_of(given: Mapping[str, str]) -> Options:
    """Raises InvalidSetting for what is missing, unknown or does not fit. Never shows the key."""
    named = {name.lower(): value.strip() for name, value in given.items()}
    if "key" in named:
        raise InvalidSetting("Spark would show the option key in its plans: say keyFile, or secretKey, which it does not show.")
    unknown = named.keys() - {name.lower() for name in KNOWN}
    if unknown:
        raise InvalidSetting(f"A source of capture has no option {', '.join(sorted(unknown))}; it has {', '.join(KNOWN)}.")
    publishers = tuple(dict.fromkeys(address.strip() for address in named.get("publishers", "").split(",") if address.strip()))
    for address in publishers:
        if not address.startswith("unix:"):
            host_and_port(address)
    if not publishers or not named.get("application"):
        raise InvalidSetting("A source of capture needs the options publishers (HOST:PORT, several with commas) and application.")
    if bool(named.get("secretkey")) == bool(named.get("keyfile")):
        raise InvalidSetting("A source of capture needs the application's key: keyFile names a file that holds it, or secretKey is it.")
    return Options(
        publishers,
        named["application"],
        named.get("secretkey", "").encode(),
        named.get("keyfile", ""),
        _number(named, "shards", 1) if named.get("shards") else None,
        _number(named, "maxUpdatesPerBatch", UPDATES_MAX),
        _number(named, "maxBytesPerBatch", BYTES_MAX),
        _flag(named, "failOnDataLoss"),
        float(_number(named, "idleSeconds", int(IDLE_S))),
        named.get("tlsauthority", ""),
    )


def _number(named: Mapping[str, str], name: str, default: int) -> int:
    text = named.get(name.lower(), "")
    if not text:
        return default
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise InvalidSetting(f"{name} is {text[:40]!r}; a whole number above 0 is expected.")
    return int(text)


def _flag(named: Mapping[str, str], name: str) -> bool:
    text = named.get(name.lower(), "true").lower()
    if text not in ("true", "false"):
        raise InvalidSetting(f"{name} is {text[:40]!r}; true or false is expected.")
    return text == "true"
