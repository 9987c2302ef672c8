"""Every setting: its name, unit, default, and one line on when to change it. docs/settings.md is generated from here.

Settings come from, later ones winning: the defaults below, roskva.toml, environment (ROSKVA_NAME), command-line flags.
Pure but for `load`, which reads one file. `python -m roskva.config` prints docs/settings.md. It is long: one place holds them all.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from roskva.address import PORT_MAX
from roskva.errors import InvalidApplication, InvalidSetting
from roskva.model import APPLICATION_PATTERN, DAY_S, check_application

FILE_NAME: Final = "roskva.toml"
DATA: Final = Path("roskva-data")
ENVIRONMENT_PREFIX: Final = "ROSKVA_"
# Variables with our prefix that are no settings of the service: where to find it, which keys to show it, which file to read, and
# what `up` and the tests tell the processes that they start.
OTHER_VARIABLES: Final = frozenset(
    {"ROSKVA_URL", "ROSKVA_ADMIN_KEY", "ROSKVA_TRUSTED_KEY", "ROSKVA_PUBLISH_KEY", "ROSKVA_CREDENTIAL"}
    | {"ROSKVA_CONFIG", "ROSKVA_CI_RUN", "ROSKVA_RUN", "ROSKVA_PARENT", "ROSKVA_MEMBER"}
)
OTHER_PREFIXES: Final = ("ROSKVA_TEST_", "ROSKVA_BENCH_")

_SIZE_UNITS: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)")
_NUMBER_MAX: Final = 2**63  # no clock and no store counts further


def setting(
    default: Any,
    when: str,
    *,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    form: str = "",
) -> Any:
    """A field of Settings or ApplicationSettings, with one line that says what it is and when to change it.

    Numbers are greater than 0 unless `least` says otherwise. `pattern` is matched against text, `form` says it in words.
    """
    return field(default=default, metadata={"when": when, "least": least, "most": most, "pattern": pattern, "form": form})


ADDRESS: Final[dict[str, Any]] = {
    "pattern": r"(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[0-9]{1,5}",
    "form": "HOST:PORT, such as 127.0.0.1:8470 or [::1]:8470",
}
ORIGIN: Final[dict[str, Any]] = {"pattern": r"https?://[^\s/,]+", "form": "an origin as browsers send it, such as https://shop.example"}
URL: Final[dict[str, Any]] = {"pattern": r"https?://[^\s/]+\S*", "form": "a URL, such as https://shop.example/may-hear"}
HASH: Final[dict[str, Any]] = {
    "pattern": r"sha256:[0-9a-f]{64}",
    "form": "sha256: and 64 hexadecimal digits, as `roskva app key` makes them",
}
# roskva.access.patterns reads them: braces hold a claim's name, or stand twice; at most 512 characters.
REGISTRABLE: Final[dict[str, Any]] = {
    "pattern": r"(?s:(?=.{1,512}\Z))(?:[^{}]|\{\{|\}\}|\{[^{}*.\s]+(?:\.[^{}*.\s]+)*\})+",
    "form": "a pattern of objects' names, such as news:* or inbox:{sub}, of at most 512 characters",
}
PATH: Final[dict[str, Any]] = {"pattern": r"[^.\s]+(?:\.[^.\s]+)*", "form": "field names joined by dots, such as data.id"}


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """[applications.NAME]: a tenant. What its clients are told, and the form in which its backends publish."""

    heartbeat_s: float = setting(1200.0, "How often a silent client says that it is there. Shorter finds drift sooner, costs messages.")
    heartbeat_smear: float = setting(0.2, "Heartbeats vary by this part, so that clients do not speak together.", least=0, most=0.5)
    offline_s: float = setting(4800.0, "Silence after which a client counts as offline: nothing is sent to it until it is heard again.")
    keepalive_s: float = setting(50.0, "How often a gateway speaks on a silent connection; keep it below your proxies' time-outs.")
    retry_min_s: float = setting(1.0, "A client's first retry of an unanswered message; doubles with jitter.")
    retry_max_s: float = setting(60.0, "The longest pause between a client's retries.")
    connect_min_s: float = setting(0.5, "A client's first pause before it connects again; doubles with jitter.")
    connect_max_s: float = setting(60.0, "The longest pause before a client connects again.")
    quiet_s: float = setting(0.0, "Ask clients to stay silent for so long after each handshake. For emergencies.", least=0)
    resend_min_s: float = setting(1.0, "First resend of an unacknowledged notification; doubles.")
    resend_max_s: float = setting(60.0, "The longest pause between resends.")
    notify_interval_ms: int = setting(
        0,
        "A client is told of one object at most once in so long, then of the latest version; it may ask for longer when it registers. "
        "Raise it for objects that change all the time. 0: every change is told.",
        least=0,
        most=3_600_000,
    )
    object_path: str = setting("object", "Where the object's name is in the application's own update form (a.b.c).", **PATH)
    version_path: str = setting("version", "Where the version is in the application's own update form.", **PATH)
    source_path: str = setting("source", "Where the source is in the application's own update form.", **PATH)

    publish_keys: tuple[str, ...] = setting(
        (),
        "Hashes of the keys that may publish (`roskva app key`); several while one replaces another. Without any, everybody may.",
        **HASH,
    )
    authentication: str = setting(
        "none",
        "How clients say who their user is: none (anybody may register: for development), jwt, or webhook.",
        pattern="none|jwt|webhook",
        form="one of none, jwt, webhook",
    )
    jwt_algorithm: str = setting(
        "EdDSA",
        "How JSON Web Tokens are signed: EdDSA, RS256 or HS256.",
        pattern="EdDSA|RS256|HS256",
        form="one of EdDSA, RS256, HS256",
    )
    jwt_keys: str = setting(
        "", "What they are verified with: a file (a public key in PEM, a JWK set, or for HS256 the secret), or the URL of a JWK set."
    )
    jwt_issuer: str = setting("", "What `iss` must be; empty: anything.")
    jwt_audience: str = setting("", "What `aud` must be or hold; empty: there must be none.")
    jwt_leeway_s: float = setting(
        30.0, "How far the clock of whoever signs may be off. A revocation counts for so long after it, too.", least=0
    )
    credential_s_max: float = setting(86_400.0, "A credential counts for so long at most after it was accepted, whatever it says.")
    authentication_webhook: str = setting("", "The URL that is asked who a credential belongs to, if authentication is webhook.", **URL)
    registrable: tuple[str, ...] = setting(
        ("*",),
        "Patterns of what a user may register for: `news:*`, or with claims of its credential `inbox:{sub}`; docs/security.md.",
        **REGISTRABLE,
    )
    authorization_webhook: str = setting(
        "", "A URL that is asked, too, whether a user may register for an object; empty: the patterns decide.", **URL
    )
    authorization_s: float = setting(
        300.0, "How long its answer counts, 1 s at least. Then it is asked again before anything is told.", least=1
    )
    webhook_timeout_s: float = setting(2.0, "How long a webhook may take; then nothing is allowed, and it is asked again.")
    webhook_key_file: str = setting("", "A file with a secret that webhooks are called with, as `Authorization: Bearer`.")
    revoked_users: tuple[str, ...] = setting(
        (),
        "USER@SECONDS: credentials of that user that were issued before then, or for jwt less than `jwt_leeway_s` after, do not count "
        "(`roskva user revoke`).",
        pattern=r".+@[0-9]+",
        form="a user, @ and a time in seconds since 1970",
    )
    origins: tuple[str, ...] = setting((), "Origins of pages, other than the gateway's own, that may call from browsers.", **ORIGIN)
    private_names: bool = setting(False, "Names of objects are hashed in logs.")

    connections_max: int = setting(0, "Connections of this application's clients at one gateway; 0: as many as that takes.", least=0)
    registrations_per_client_max: int = setting(0, "Registrations of one client; 0: as many as the service allows.", least=0)
    messages_per_s_max: float = setting(
        1_000.0,
        "Messages of one client in a second, ten times as many at once; more are refused. A client answers each message that notifies it.",
    )
    publishes_per_s_max: float = setting(200_000.0, "Updates in a second at one gateway, twice as many at once; more are refused.")


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole service."""

    data: Path = setting(DATA, "The data directory: feed, tables, checkpoints, keys.")
    listen: str = setting("127.0.0.1:8470", "HOST:PORT of the one public port.", **ADDRESS)
    internal_listen: str = setting(
        "127.0.0.1:0",
        "HOST:PORT for calls between gateways and pipeline; port 0 picks a free one. Of several gateways, each takes the next port.",
        **ADDRESS,
    )
    gateways: int = setting(
        0,
        "Gateways that `roskva up` runs, all on the public port; 0: one for every two cores, at least one, at most one for each partition.",
        least=0,
        most=64,
    )
    gateway_name: str = setting(
        "",
        "How one gateway is called in status, metrics and `DIR/run`; empty: by an id of its own. `roskva up` names those that it runs.",
        pattern="[a-z0-9][a-z0-9-]{0,31}",
        form="1 to 32 of a-z, 0-9 and hyphen",
    )
    share_port: bool = setting(
        False, "Listen on the public port beside other gateways on the same data directory. `roskva up` does so if it runs several."
    )
    insecure: bool = setting(
        False, "Serve other machines although applications ask neither clients nor publishers who they are; for closed networks only."
    )
    tls_certificate: str = setting("", "A file with the certificate chain in PEM: the public port speaks TLS. Renewed files are noticed.")
    tls_key: str = setting("", "The file with the certificate's private key in PEM.")
    reload_s: float = setting(1.0, "How often the settings' and certificates' files are looked at; applications change without a restart.")
    data_center: str = setting(
        "local",
        "The name of this data center; part of every token.",
        pattern=APPLICATION_PATTERN.pattern,
        form="1 to 64 of a-z, 0-9, dot, underscore and hyphen",
    )
    partitions: int = setting(
        4, "Partitions of feed and tables. Fixed when the data directory is created; each costs an fsync.", least=1, most=256
    )
    log_level: str = setting(
        "info",
        "debug, info, warning or error.",
        pattern="debug|info|warning|error",
        form="one of debug, info, warning, error",
    )

    feed_retention_s: float = setting(86_400.0, "How long consumed records are kept in the feed.", least=0)
    feed_bytes_max: int = setting(
        1 << 30, "Bytes a feed partition may hold; consumed records go first, then publishes are refused.", least=1 << 16
    )
    disk_free_bytes_min: int = setting(
        256 << 20, "Below so much free space on the data directory's disk, publishes and registrations are refused. 0: never.", least=0
    )
    publish_batch_max: int = setting(10_000, "Updates in one publish request.")
    publish_bytes_max: int = setting(8 << 20, "Bytes of one publish request.", least=1 << 10)
    publish_waiting_bytes_max: int = setting(
        64 << 20, "Bytes of publish requests under way at one gateway, 4 KiB added for each; more are answered `overloaded`.", least=1 << 10
    )

    message_bytes_max: int = setting(1 << 20, "Bytes of one client message.", least=1 << 10)
    operations_per_message_max: int = setting(
        1_000, "Registrations, unregistrations, acknowledgements and objects of a sync in one client message."
    )
    registrations_per_client_max: int = setting(100_000, "Registrations of one client.")
    send_buffer_bytes_max: int = setting(
        256 << 10,
        "Unsent bytes of one connection; more is dropped, and if it stays full for 5 s it is closed. Its client catches up.",
        least=1 << 12,
    )
    connections_max: int = setting(18_000, "Connections of one gateway; keep it below the file limit (ulimit -n).")
    connections_per_address_max: int = setting(2_000, "Connections from one address; many people may share one.")
    handshakes_per_address_per_s: float = setting(50.0, "Handshakes from one address in a second, twenty times as many at once.")
    unlimited_addresses: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"), "Addresses without these two limits: of this machine, of load generators."
    )
    proxies: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"), "Addresses of proxies in front: what they say in X-Forwarded-For is the client's address."
    )
    reconnects_per_s: float = setting(1_000, "A gateway that stops asks its clients to come back at this pace, so that they are no herd.")

    fast_path: bool = setting(
        True, "Send accepted updates at once to clients that are online. The pipeline tells everybody, with it and without it, only later."
    )
    stamps_per_s: float = setting(
        20.0,
        "Updates in a second, at one gateway, whose way to clients is measured (`roskva latency`). 0: none.",
        least=0,
    )
    ack_wait_ms: float = setting(50.0, "How long a notification may wait for its acknowledgement before it is written.", least=0)
    scan_s: float = setting(60.0, "How often the rows of online clients with unfinished work are read again.")
    mark_poll_s: float = setting(1.0, "How often a gateway looks for work that others left for its clients.")
    mark_bucket_s: float = setting(60.0, "Marks of unfinished work are kept in buckets; a new one is begun so often.")
    mark_retention_s: float = setting(3_600.0, "How long marks are kept; what is unfinished longer is marked again.")
    rows_cached_max: int = setting(50_000, "Client rows kept in a gateway's memory.")
    row_idle_s: float = setting(60.0, "A client row is dropped from memory after so long without use.")
    member_heartbeat_s: float = setting(1.0, "How often a gateway says that it lives.")
    member_timeout_s: float = setting(5.0, "A gateway whose counter did not move for so long is dead to the others.")
    settling_s: float = setting(120.0, "After a change of members, nothing is void without a fresh read for so long.", least=0)
    operations_waiting_max: int = setting(
        20_000, "Handshakes, registrations and objects of syncs that wait at one gateway; more are answered `overloaded`."
    )
    unfinished_max: int = setting(
        100_000, "Registrations on their way, and as many marked clients, in a gateway's memory; a scan finds what is dropped at the limit."
    )
    gateway_memory_bytes_max: int = setting(
        2 << 30, "Resident memory of a gateway; above it caches and unfinished work are dropped, new work is refused. 0: no limit.", least=0
    )
    outstanding_max: int = setting(200_000, "Notifications kept in a gateway's memory until acknowledged; above, they are only stored.")

    client_retention_days: int = setting(
        60, "Clients that were not seen for longer are collected. One that returns later starts anew and fetches everything."
    )
    collect_every_s: float = setting(86_400.0, "How often clients are looked at for collection; 0: only by hand.", least=0)
    zombies_every_s: float = setting(86_400.0, "How often rows of collected or lost clients are removed; 0: only by hand.", least=0)
    object_retention_days: int = setting(
        30, "The version of an object that nobody registers and nobody updates is forgotten after so long; not below what may be replayed."
    )
    outage_days_max: int = setting(
        7, "The longest that pipeline or gateways may stand still. Closed cells are kept for so long, and for the feed's retention."
    )
    objects_every_s: float = setting(86_400.0, "How often objects are looked at for collection; 0: only by hand.", least=0)
    purge_every_s: float = setting(86_400.0, "How often closed cells are looked for and removed; 0: only by hand.", least=0)
    compare_every_s: float = setting(604_800.0, "How often the two views of all registrations are compared; 0: only by hand.", least=0)

    retry_horizon_s: float = setting(
        600.0, "How long publishers may repeat an update: for so long after a loss no version of that partition counts as known.", least=0
    )
    propagation_timeout_s: float = setting(2.0, "How long the pipeline waits for a Registrar before it writes in its stead.")
    scratch_after_s: float = setting(
        2.0, "How long the pipeline tries to write a row. Then it puts aside what is for it, so that nobody else waits.", least=0
    )
    scratch_every_s: float = setting(10.0, "How often what was put aside is tried again, while there is anything.")
    records_per_batch_max: int = setting(20_000, "Records of one feed partition that one micro-batch takes.")
    batch_delay_ms: int = setting(
        0,
        "Batches of updates alone begin at least so long apart, with the fast path and without: larger ones, for less CPU. Without it all"
        " are told so much later; a registration never waits. `python -m bench batching` shows the price.",
        least=0,
        most=1_000,
    )
    batch_rest_ms: int = setting(
        1_000,
        "With the fast path: how long Spark rests at most, four times as long as its last batch took, before one of updates alone."
        " 0: never, for more CPU. Clients that are online wait for none of it, nor does a registration.",
        least=0,
    )
    fan_out_above: int = setting(
        1_000, "Updates of objects with more registrations go through a query of their own, so that nobody waits for them."
    )
    pipeline_cores: int = setting(2, "Cores of Spark's local mode.")
    pipeline_memory: str = setting("1g", "Heap of Spark's JVM.", pattern="[0-9]+[mg]", form="a number and m or g, such as 1g")
    pipeline_stall_s: float = setting(60.0, "The supervisor restarts a pipeline of which a query has work and did none of it for so long.")

    applications: Mapping[str, ApplicationSettings] = field(
        default_factory=lambda: {"demo": ApplicationSettings()}, metadata={"when": "The applications, one table each."}
    )

    @property
    def replay_days(self) -> int:
        """After so many days nothing that was in the feed, or in a process that stood still, can come back."""
        return math.ceil(self.feed_retention_s / DAY_S) + self.outage_days_max


class LiveApplications(Mapping[str, ApplicationSettings]):
    """The applications of a running gateway: whoever holds this sees those of the settings file as it was read last."""

    __slots__ = ("now",)

    def __init__(self, applications: Mapping[str, ApplicationSettings]) -> None:
        self.now: Mapping[str, ApplicationSettings] = dict(applications)  # never changed: another takes its place

    def replace(self, applications: Mapping[str, ApplicationSettings]) -> None:
        self.now = dict(applications)

    def __getitem__(self, name: str) -> ApplicationSettings:
        return self.now[name]

    def __iter__(self) -> Iterator[str]:
        """Of now: a walk that takes long is not disturbed."""
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)

    def __repr__(self) -> str:
        return f"LiveApplications({self.now!r})"


# What must not be smaller than what: (where, smaller, larger).
_ORDER: Final = (
    (ApplicationSettings, "heartbeat_s", "offline_s"),
    (ApplicationSettings, "retry_min_s", "retry_max_s"),
    (ApplicationSettings, "connect_min_s", "connect_max_s"),
    (ApplicationSettings, "resend_min_s", "resend_max_s"),
    (Settings, "member_heartbeat_s", "member_timeout_s"),
    (Settings, "mark_bucket_s", "mark_retention_s"),
)


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """The settings from a file (None: no file), the environment and the flags, each winning over those before it.

    Raises InvalidSetting, with the place and a suggestion, for what is unknown or does not fit.
    """
    values: dict[str, Any] = {}
    applications: dict[str, ApplicationSettings] | None = None
    if file is not None:
        tables = _read(file)
        if "applications" in tables:
            applications = _applications(tables.pop("applications"), str(file))
        values.update(_convert_all(Settings, tables, str(file)))
    values.update(_from_environment(environ))
    values.update(_convert_all(Settings, flags, "the command line"))
    settings = Settings(**values)
    if applications is not None:
        settings = replace(settings, applications=applications)
    _check_order(settings, "the settings")
    return settings


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the settings of a process come from, so that they can be read again while it runs."""

    file: Path  # absolute
    required: bool  # else there need not be one, but there may be later
    environ: Mapping[str, str]
    flags: Mapping[str, str]

    def load(self) -> Settings:
        return load(self.file if self.required or self.file.exists() else None, self.environ, self.flags)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"The settings file {file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, and numbers that Python does not read
        raise InvalidSetting(f"The settings file {file} is not TOML: {error}.") from None


def _applications(tables: object, place: str) -> dict[str, ApplicationSettings]:
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise InvalidSetting(f"{place}: applications are written as tables, one [applications.NAME] for each.")
    found = {}
    for name, table in tables.items():
        where = f"{place}, [applications.{name}]"
        try:
            check_application(name)
        except InvalidApplication as error:
            raise InvalidSetting(f"{where}: {error}") from None
        found[name] = ApplicationSettings(**_convert_all(ApplicationSettings, table, where))
        _check_order(found[name], where)
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES and not name.startswith(OTHER_PREFIXES)
    }
    return _convert_all(Settings, found, "the environment", spelled=lambda name: ENVIRONMENT_PREFIX + name.upper())


def _convert_all(kind: type, given: Mapping[str, object], place: str, spelled: Any = str) -> dict[str, Any]:
    known = {item.name: item for item in fields(kind) if item.name != "applications"}
    converted = {}
    for name, value in given.items():
        if name not in known:
            raise InvalidSetting(f"{place}: there is no setting {spelled(name)!r}.{_suggestion(name, known, kind, spelled)}")
        converted[name] = _convert(known[name], value, f"{place}: {spelled(name)}")
    return converted


def _suggestion(name: str, known: Iterable[str], kind: type, spelled: Any) -> str:
    if kind is Settings and name in {item.name for item in fields(ApplicationSettings)}:
        return f" {name!r} belongs into a table [applications.NAME]."
    if kind is ApplicationSettings and name in {item.name for item in fields(Settings)}:
        return f" {name!r} belongs to the top of the file, before the first table."
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    if near:
        return f" Did you mean {spelled(near[0])!r}?"
    return ""


def _convert(item: Field[Any], value: object, place: str) -> Any:
    """The value in the type of its field: as TOML has it, or from text."""
    if item.type == "tuple[str, ...]":
        return _convert_list(item, value, place)
    if item.type == "bool":
        return _convert_bool(value, place)
    if item.type in ("str", "Path"):
        if value == "" == item.default:
            return value  # as if it were not there
        if not isinstance(value, str) or not value or "\0" in value:
            raise InvalidSetting(f"{place} must be text, not {value!r}.")
        pattern = item.metadata["pattern"]
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise InvalidSetting(f"{place} is {value!r}; it must be {item.metadata['form']}.")
        if item.metadata["form"] == ADDRESS["form"] and int(value.rpartition(":")[2]) > PORT_MAX:
            raise InvalidSetting(f"{place} is {value!r}; ports end at {PORT_MAX}.")
        return _path(value, place) if item.type == "Path" else value
    number = _number(item, value, place)
    least, most = item.metadata["least"], item.metadata["most"]
    if least is None and number <= 0:
        raise InvalidSetting(f"{place} is {value!r}; it must be greater than 0.")
    if (least is not None and number < least) or (most is not None and number > most):
        limits = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise InvalidSetting(f"{place} is {value!r}; it must be {limits}.")
    return number


def _path(text: str, place: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InvalidSetting(f"{place} is {text!r}; there is no such user.") from None


def _convert_list(item: Field[Any], value: object, place: str) -> tuple[str, ...]:
    """A list of texts; outside of the file, separated by commas."""
    texts = [text.strip() for text in value.split(",") if text.strip()] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidSetting(f"{place} must be a list of texts, not {value!r}.")
    pattern = item.metadata["pattern"]
    for text in texts:
        if pattern is not None and re.fullmatch(pattern, text) is None:
            raise InvalidSetting(f"{place} holds {text!r}; each must be {item.metadata['form']}.")
    return tuple(texts)


def _convert_bool(value: object, place: str) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise InvalidSetting(f"{place} must be true or false, not {value!r}.")
    return found


def _number(item: Field[Any], value: object, place: str) -> int | float:
    whole = item.type == "int"
    expected = "a whole number" if whole else "a number"
    if _is_size(item.name):
        expected += ", or text such as '64 MiB'"
    if isinstance(value, str):
        value = _from_text(value, whole, size=_is_size(item.name))
    # Not a number (NaN) is not below anything.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _NUMBER_MAX or (whole and value != int(value)):
        raise InvalidSetting(f"{place} must be {expected}, and less than {_NUMBER_MAX:.0e}.")
    return int(value) if whole else float(value)


def _from_text(text: str, whole: bool, size: bool) -> int | float | None:
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    if match is None or (match[2] and not size) or match[2].lower() not in _SIZE_UNITS:
        return None
    if not match[2] and whole:
        return int(match[1]) if match[1].isdigit() else None
    return float(match[1]) * _SIZE_UNITS[match[2].lower()]


def _is_size(name: str) -> bool:
    return "_bytes_" in name


def _check_order(settings: Settings | ApplicationSettings, place: str) -> None:
    for kind, smaller, larger in _ORDER:
        if isinstance(settings, kind) and getattr(settings, smaller) > getattr(settings, larger):
            raise InvalidSetting(
                f"{place}: {smaller} ({getattr(settings, smaller):g}) is greater than {larger} ({getattr(settings, larger):g})."
            )
    if isinstance(settings, Settings) and settings.object_retention_days < settings.replay_days:
        raise InvalidSetting(
            f"{place}: object_retention_days ({settings.object_retention_days}) is less than feed_retention_s in days and outage_days_max"
            f" together ({settings.replay_days}): an update could be replayed after its object was forgotten."
        )


REFERENCE: Final = """\
# Settings

Generated from `src/roskva/config.py` by `python -m roskva.config`; a test keeps it up to date.

Settings come from, later ones winning: the defaults below; `roskva.toml` in the working directory, or the file named by
`--config` or `ROSKVA_CONFIG`; the environment, as `ROSKVA_` and the name in capitals; the command line: `--data`, `--listen`,
or `--set NAME=VALUE` for any of them. What is unknown or does not fit is refused, with the place where it stands. Units are at
the end of the names. Sizes (`..._bytes_...`) may be written as `"64 MiB"`.

```toml
# roskva.toml
data = "/var/lib/roskva"
feed_bytes_max = "4 GiB"

[applications.shop]
heartbeat_s = 600
object_path = "article.id"
```

## The service

{service}

## Applications

Each application has a table `[applications.NAME]`. Without any, there is one named `demo`; a file that has some replaces it.

{application}

## Elsewhere

`ROSKVA_URL` (or `--url`) tells `publish`, `watch`, `status` and `dead-letters` where the service is: `http://127.0.0.1:8470`
unless set. `ROSKVA_ADMIN_KEY` is what the operators' commands show it, unless they find `keys.json` in the data directory of a service on
this machine; `ROSKVA_PUBLISH_KEY` (or `--key`) what `publish` and `invalidate` show; `ROSKVA_CREDENTIAL` (or `--credential`) what `watch`
names its user with; `ROSKVA_TRUSTED_KEY` (or `--key`) what `load` shows. `JAVA_HOME` names the Java that Spark runs on, if it is not found
by itself.
"""


def reference() -> str:
    """docs/settings.md."""
    return REFERENCE.format(service=_table(Settings), application=_table(ApplicationSettings))


def _table(kind: type) -> str:
    rows = ["| name | default | what it is, when to change it |", "|---|---|---|"]
    rows += [
        f"| `{item.name}` | {_shown(item.name, item.default)} | {item.metadata['when']} |"
        for item in fields(kind)
        if item.name != "applications"
    ]
    return "\n".join(rows)


def _shown(name: str, default: Any) -> str:
    """A default as one would write it in the file."""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return "`[" + ", ".join(f'"{text}"' for text in default) + "]`"
    if isinstance(default, str | Path):
        return f'`"{default}"`'
    if _is_size(name):
        unit = next(unit for unit in ("GiB", "MiB", "KiB") if default % _SIZE_UNITS[unit.lower()] == 0)
        return f'`"{default // _SIZE_UNITS[unit.lower()]} {unit}"`'
    return f"`{default}`" if isinstance(default, int) or default != int(default) else f"`{int(default)}`"


if __name__ == "__main__":
    print(reference(), end="")
