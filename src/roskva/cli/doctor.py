"""`roskva doctor`: checks what the service needs of this machine, and says how to fix each.

A check takes the settings and answers ok, warn or fail. Checks change nothing but one small file in the data directory, which
they remove again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from roskva.address import bound_socket
from roskva.cli.gateways import gateway_count, gateways_of, machine_memory_bytes, memory_bytes_max, usable_cores
from roskva.cli.http import get_json
from roskva.cli.up import public_url
from roskva.config import Settings
from roskva.errors import AddressInUse, InvalidSetting, RoskvaError
from roskva.gateway.sharing import RUN

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

FSYNC_SLOW_MS: Final = 20.0
FREE_BYTES_LEAST: Final = 2 << 30
FREE_BYTES_FAIL: Final = 200 << 20
_SYNCS: Final = 15
# In memory: nothing that is acknowledged there outlives a restart of the machine.
_VOLATILE: Final = ("tmpfs", "ramfs", "devtmpfs")
_PACKAGES: Final = ("msgspec", "aiohttp", "picows", "uvloop", "prometheus-client", "pyspark", "pyarrow", "pandas")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: str
    what: str
    fix: str = ""


def doctor(settings: Settings, as_json: bool) -> int:
    checks = [check(settings) for check in CHECKS]
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            print(f"  {check.state:<5} {check.name:<16} {check.what}")
            if check.fix:
                print(f"        {'':<16} -> {check.fix}")
    return 1 if any(check.state == FAIL for check in checks) else 0


def check_python(settings: Settings) -> Check:
    if platform.system() != "Linux":
        fix = "Run the service on Linux; clients and publishers run anywhere."
        return Check("Python", FAIL, f"{platform.python_version()} on {platform.system()}", fix)
    return Check("Python", OK, f"{platform.python_version()} ({sys.executable})")


def check_packages(settings: Settings) -> Check:
    """Compares with what pyproject.toml pins: another pyspark or picows may start and then misbehave."""
    found: dict[str, str] = {}
    missing = []
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", FAIL, f"missing: {', '.join(missing)}", "make install, or pip install 'roskva[server]'")
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    wrong = [f"{name} {found[name]} (needs {pin})" for name, pin in _pins().items() if name in found and found[name] != pin]
    if wrong:
        return Check("packages", FAIL, f"not as pinned: {', '.join(wrong)}", "make install, or pip install 'roskva[server]'")
    return Check("packages", OK, shown)


def _pins() -> dict[str, str]:
    try:
        requirements = metadata.requires("roskva") or []
    except metadata.PackageNotFoundError:
        return {}
    plain = [requirement.split(";")[0].strip() for requirement in requirements]
    return dict(requirement.split("==", 1) for requirement in plain if "==" in requirement)


def check_java(settings: Settings) -> Check:
    from roskva.pipeline.session import find_java_home, java_version

    try:
        home = find_java_home()
    except RoskvaError as error:
        return Check("Java", FAIL, error.what, error.advice)
    return Check("Java", OK, f"{java_version(home)} at {home}")


def check_port(settings: Settings) -> Check:
    try:
        bound_socket(settings.listen).close()
    except AddressInUse:
        return _who_listens(settings)
    except InvalidSetting as error:
        return Check("port", FAIL, error.what, "Choose another address with --listen HOST:PORT.")
    return Check("port", OK, f"{settings.listen} is free")


def _who_listens(settings: Settings) -> Check:
    listen = settings.listen
    try:
        answer = get_json(f"{public_url(listen)}/v1/openapi.json", 3.0)
    except RoskvaError:
        return Check("port", FAIL, f"{listen} is in use by another program", "Stop it, or choose another with --listen HOST:PORT.")
    about = answer.get("info")
    if not isinstance(about, dict) or about.get("title") != "Roskva":
        return Check("port", FAIL, f"another web server answers on {listen}", "Stop it, or choose another with --listen HOST:PORT.")
    return Check("port", OK, f"Roskva {about.get('version', '')} answers on {listen}")


def check_directory(settings: Settings) -> Check:
    existing = _existing(settings.data)
    if not existing.is_dir():
        return Check("data directory", FAIL, f"{existing} is not a directory", "Choose another with --data DIR.")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check("data directory", FAIL, f"{existing} cannot be written", f"Give this user the right to write it: chown {existing}")
    if existing != settings.data.absolute():
        return Check("data directory", OK, f"{settings.data} will be created")
    return Check("data directory", OK, f"{settings.data} can be written")


def check_secrets(settings: Settings) -> Check:
    """Whether other users of this machine can read what is nobody's but the service's. What was there before keeps its mode."""
    keys = settings.data / "keys.json"
    looked_at = [(settings.data, 0o007), (keys, 0o077), (settings.data / RUN, 0o077)]
    if settings.tls_key:
        looked_at.append((Path(settings.tls_key).expanduser(), 0o007))  # a group for certificates is usual
    open_to_others = []
    for path, others in looked_at:
        with contextlib.suppress(OSError):  # what is not there, or not ours to look at, is said elsewhere
            if path.stat().st_mode & others:
                open_to_others.append((path, others))
    if not open_to_others:
        return Check("secrets", OK, "no other user of this machine can read keys or data")
    fix = "; ".join(f"chmod {'go' if others == 0o077 else 'o'}-rwx {path}" for path, others in open_to_others)
    return Check("secrets", WARN, f"others can use {', '.join(str(path) for path, _ in open_to_others)}", fix)


def check_manifest(settings: Settings) -> Check:
    """Reads the manifest only: the service, when it finds an unreadable one, starts everything anew."""
    path = settings.data / "manifest.db"
    if not path.exists():
        return Check("manifest", OK, "none yet: a new deployment begins")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=2.0)) as connection:
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            states = dict(connection.execute("SELECT state, count(*) FROM partitions GROUP BY state ORDER BY state"))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        fix = 'At the next start everything begins anew: clients register again by themselves and are told "unknown".'
        return Check("manifest", WARN, f"{path} cannot be read: {error}", fix)
    shown = ", ".join(f"{count} {state}" for state, count in states.items()) or "no partitions yet"
    made_with = facts.get("partitions", str(settings.partitions))
    if made_with != str(settings.partitions):
        fix = f"Set partitions = {made_with}, or use another data directory: their number is fixed when it is created."
        return Check("manifest", FAIL, f"made with {made_with} partitions, the settings say {settings.partitions}", fix)
    if facts.get("data_center", settings.data_center) != settings.data_center:
        fix = "Set data_center as it was, or use another data directory."
        return Check("manifest", FAIL, f"belongs to the data center {facts['data_center']!r}", fix)
    if set(states) - {"complete"}:
        return Check(
            "manifest",
            WARN,
            f"partitions: {shown}",
            "A lost partition is repaired while the service runs, and takes retry_horizon_s: docs/operations.md says what that means.",
        )
    return Check("manifest", OK, f"partitions: {shown}")


def check_sync(settings: Settings) -> Check:
    """Each acknowledged publish waits for an fsync: measures it where the feed would be."""
    where = _existing(settings.data)
    kind = _file_system(where)
    try:
        p50_ms = _measure_fsync_ms(where)
    except OSError as error:
        return Check("disk sync", FAIL, f"cannot sync in {where}: {error.strerror}", "Choose another disk with --data DIR.")
    shown = f"fsync takes {p50_ms:.2f} ms (p50) on {kind}"
    if kind in _VOLATILE:
        return Check("disk sync", WARN, f"{shown}, which is memory", "What is acknowledged is lost with the machine: use a disk.")
    if p50_ms > FSYNC_SLOW_MS:
        return Check("disk sync", WARN, f"{shown}, which is slow", "Every publish waits for it: use a faster disk.")
    return Check("disk sync", OK, shown)


def _measure_fsync_ms(where: Path) -> float:
    times_ms = []
    with tempfile.TemporaryFile(dir=where) as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 4_096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times_ms.append((time.perf_counter() - began) * 1_000)
    return statistics.median(times_ms)


def _file_system(path: Path) -> str:
    """The kind of file system that holds the path: the longest mount point above it."""
    best, kind = "", "an unknown file system"
    resolved = str(path.resolve())
    for line in Path("/proc/mounts").read_text(errors="replace").splitlines():
        _, point, found, *_ = line.split()
        point = point.replace("\\040", " ")
        if (resolved == point or resolved.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, found
    return kind


def check_space(settings: Settings) -> Check:
    free = shutil.disk_usage(_existing(settings.data)).free
    needed = max(FREE_BYTES_LEAST, settings.feed_bytes_max * settings.partitions)
    shown = f"{free / (1 << 30):.1f} GiB free"
    if free < max(FREE_BYTES_FAIL, settings.disk_free_bytes_min):
        refused = ": publishes and registrations are refused (disk_free_bytes_min)" if free < settings.disk_free_bytes_min else ""
        return Check("disk space", FAIL, shown + refused, "Free some, or choose another disk with --data DIR.")
    if free < needed:
        return Check(
            "disk space",
            WARN,
            shown,
            f"A full feed takes up to {needed / (1 << 30):.0f} GiB: free some, or lower feed_bytes_max.",
        )
    return Check("disk space", OK, shown)


def check_gateways(settings: Settings) -> Check:
    """Whether as many as would run have cores and memory, and a port each for internal calls."""
    count, cores = gateway_count(settings), usable_cores()
    shown = f"{count} on {cores} cores"
    try:
        gateways_of(settings)
    except InvalidSetting as error:
        return Check("gateways", FAIL, error.what, "Set internal_listen to a lower port, or to port 0.")
    if count > cores:
        fix = f"Each uses one core: set gateways = {max(1, cores // 2)}, or leave it out."
        return Check("gateways", WARN, f"{shown}, more than can run at a time", fix)
    wanted, there = count * memory_bytes_max(settings, count), machine_memory_bytes()
    if wanted > there:
        fix = "Lower gateway_memory_bytes_max, which is for each of them, or gateways."
        return Check("gateways", WARN, f"{shown} may use {wanted >> 20:,} MiB of memory, the machine has {there >> 20:,}", fix)
    return Check("gateways", OK, shown)


def check_files(settings: Settings) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= settings.connections_max + 500:
        return Check("open files", OK, f"ulimit -n is {soft}")
    fix = f"ulimit -n {settings.connections_max + 500} before the start (the hard limit is {hard}), or lower connections_max."
    return Check(
        "open files",
        FAIL if soft < 256 else WARN,
        f"ulimit -n is {soft}, below connections_max ({settings.connections_max})",
        fix,
    )


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


CHECKS: Final[tuple[Callable[[Settings], Check], ...]] = (
    check_python,
    check_packages,
    check_java,
    check_port,
    check_directory,
    check_secrets,
    check_manifest,
    check_sync,
    check_space,
    check_gateways,
    check_files,
)
