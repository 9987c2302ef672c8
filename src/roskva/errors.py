"""Every error that Roskva can show a person: what happened, to what, and what to do next.

    RoskvaError
    +-- BadRequest                 the caller must change something before it tries again
    |   +-- InvalidName            an object's name is empty, too long or not decodable
    |   +-- InvalidVersion         a version is not an integer from 0 to 2^63-1
    |   +-- InvalidApplication     an application's name has forbidden characters
    |   +-- InvalidDevice          a device or source is empty or too long
    |   +-- UnknownApplication     no such application is configured
    |   +-- UnknownObject          no version of this object is known
    |   +-- UnknownClient          no row of this client is in the table
    |   +-- UnknownPath            nothing is served at this path, or not with this method
    |   +-- OriginRefused          a page of another origin called from a browser
    |   +-- MalformedMessage       not JSON, not of the documented form, or not text
    |   +-- MessageTooLarge        a message or request body is over the limit
    |   +-- TooManyOperations      one message holds more operations than allowed
    |   +-- TooManyRegistrations   the client has as many registrations as allowed
    |   +-- TokenInvalid           the token is forged, damaged, or of a collected client
    |   +-- TokenElsewhere         the token is of another data center or incarnation
    |   +-- SessionSuperseded      a later start of the same client took over
    |   +-- TrustRefused           a trusted connection did not show the key
    |   +-- PublishKeyRefused      a publish did not show a key of its application
    |   +-- AdministrationRefused  a call of an operator did not show the key
    |   +-- CredentialRequired     the application asks who its users are, and none was named
    |   +-- CredentialRefused      a user's credential is forged, of somebody else, or revoked
    |   +-- CredentialExpired      a user's credential is too old
    |   +-- NotAuthorized          this user may not register for this object
    |   +-- EncodingRefused        a request's body is compressed
    |   +-- ChannelClosed          a polled connection is not known, or was closed
    |   +-- InvalidSetting         a setting is unknown, or its value does not fit
    |   +-- InvalidFilter          a filter, a shard's rule or a mapping of capture cannot be read
    |   +-- WrongHistory           a position is one that this replica of a database has never had
    |   +-- LogCut                 the log of a database begins after what was asked for: changes are gone
    |   +-- CaptureRefused         a database does not let us read its log, or a subscriber showed no key
    +-- Unavailable                the same call may succeed later
    |   +-- FeedFull               unread records reached the limit: publishes are refused
    |   +-- DiskFull               the data directory's disk is nearly full: publishes and registrations are refused
    |   +-- PartitionUnavailable   a partition is failing or cannot be opened
    |   +-- PartitionBusy          others write to a partition, and the turn to do so did not come in time
    |   +-- PartitionLost          a partition's file is not the one that the manifest names
    |   +-- Overloaded             a queue is at its limit
    |   +-- RateLimited            more messages, publishes or handshakes in a second than allowed
    |   +-- TooManyConnections     an address or an application has as many connections as allowed
    |   +-- MemberConnected        a process of an application of capture comes under the name of one that is connected
    |   +-- AuthorizationUnavailable  the application's own service, which decides, does not answer
    |   +-- GoingAway              the gateway stops, and its clients come back within `retry_after_s`
    |   +-- SlowConsumer           a connection did not take what was sent to it
    |   +-- ServiceUnreachable     nothing answers at the service's address
    |   +-- DatastoreUnavailable   a database whose log is read does not answer
    |   +-- FetchFailed            a LiveCache has no current value, and the application's own fetch failed
    +-- KeysUnusable               the file of keys cannot be read or created
    +-- DataOutdated               the data directory was made by an earlier version of Roskva
    +-- AddressInUse               something else listens on the port, or another `up` uses the data directory
    +-- JavaMissing                no Java 17 or 21 was found, which Spark needs
    +-- StateInUse                 another running client holds this state file
    +-- ClientStopped              this client was superseded twice in a minute, or was stopped
    +-- UsedAfterFork              a BlockingLiveCache was used before this process was forked

`code` is stable and documented in docs/errors.md, which is generated from this file. It is long: one place holds them all.
"""

from __future__ import annotations

import re
from typing import ClassVar


def _shown(value: object) -> str:
    """At most 80 characters of what was given, so that no message grows with its input."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class RoskvaError(Exception):
    """Base of all errors of Roskva. `str(error)` is one line for a person; `code` is for programs."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500  # of an HTTP answer
    transient: ClassVar[bool] = False  # may the same call succeed later?
    advice: ClassVar[str] = "Look into the service's log; if it happens again, please report it."

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


class BadRequest(RoskvaError):
    code = "bad-request"
    status = 400
    advice = "Correct the request and send it again."


class InvalidName(BadRequest):
    code = "invalid-name"
    advice = "Name objects with 1 to 128 bytes: UTF-8 text, or base64: followed by base64url."

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"The object name {_shown(name)} cannot be used: {reason}.")


class InvalidVersion(BadRequest):
    code = "invalid-version"
    advice = "Use an integer from 0 to 9223372036854775807, as a number or in decimal digits."

    def __init__(self, version: object) -> None:
        super().__init__(f"{_shown(version)} is not a version.")


class InvalidApplication(BadRequest):
    code = "invalid-application"
    advice = "Use 1 to 64 of a-z, 0-9, dot, underscore and hyphen, beginning with a letter or digit."

    def __init__(self, application: object) -> None:
        super().__init__(f"{_shown(application)} is not an application's name.")


class InvalidDevice(BadRequest):
    code = "invalid-device"
    advice = "Use 1 to 128 bytes of UTF-8 text, unique per installation."

    def __init__(self, device: object) -> None:
        super().__init__(f"{_shown(device)} cannot name a device.")


class UnknownApplication(BadRequest):
    code = "unknown-application"
    status = 404
    advice = "Add it to the settings file with `roskva app create`, or check the spelling."

    def __init__(self, application: object) -> None:
        super().__init__(f"There is no application {_shown(application)} here.")


class UnknownObject(BadRequest):
    code = "unknown-object"
    status = 404
    advice = "It was never published, or its version was lost: fetch the object from its own store."

    def __init__(self, application: str, name: str) -> None:
        super().__init__(f"No version of {_shown(name)} of application {_shown(application)} is known.")


class UnknownClient(BadRequest):
    code = "unknown-client"
    status = 404
    advice = "Check the id; a client that was collected or lost starts anew under another one."

    def __init__(self, client: object) -> None:
        super().__init__(f"There is no client {_shown(client)} here.")


class UnknownPath(BadRequest):
    code = "unknown-path"
    status = 404
    advice = "/v1/openapi.json lists what is served."

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"Nothing is served for {_shown(method)} at {_shown(path)}.")


class OriginRefused(BadRequest):
    code = "origin-refused"
    status = 403
    advice = "List the origin in `origins` of the application, or serve the page from the same host and port; proxies must pass on Host."

    def __init__(self, origin: str) -> None:
        super().__init__(f"Pages of {_shown(origin)} may not call this service.")


class MalformedMessage(BadRequest):
    code = "malformed-message"
    advice = "docs/protocol.md and /v1/openapi.json describe what is expected."


class MessageTooLarge(BadRequest):
    code = "message-too-large"
    status = 413
    advice = "Split it into several."

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"The message has {size:,} bytes; {limit:,} are allowed.")


class TooManyOperations(BadRequest):
    code = "too-many-operations"
    status = 413
    advice = "Split them over several messages."

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"The message has {count:,} operations; {limit:,} are allowed.")


class TooManyRegistrations(BadRequest):
    code = "too-many-registrations"
    advice = "Unregister what is no longer needed, or use coarser objects."

    def __init__(self, limit: int) -> None:
        super().__init__(f"This client has {limit:,} registrations, which is the limit.")


class TokenInvalid(BadRequest):
    code = "token-invalid"
    status = 401
    advice = "Forget the token and start anew with `init`."


class TokenElsewhere(BadRequest):
    code = "token-elsewhere"
    status = 401
    advice = "Handshake again with `init`, giving the token as `prior`."


class SessionSuperseded(BadRequest):
    code = "session-superseded"
    status = 401
    advice = "Handshake once more; if it happens again within a minute, two clients share one state: give each its own."


class TrustRefused(BadRequest):
    code = "trust-refused"
    status = 401
    advice = "Send `Authorization: Bearer` with the key `trusted` of DATA/keys.json."


class PublishKeyRefused(BadRequest):
    code = "publish-key-refused"
    status = 401
    advice = "Send `Authorization: Bearer` with a key of the application; `roskva app key add` makes one."

    def __init__(self, application: object = None) -> None:
        super().__init__(
            "No key of an application was shown." if application is None else f"No key of application {_shown(application)} was shown."
        )


class AdministrationRefused(BadRequest):
    code = "administration-refused"
    status = 401
    advice = "Send `Authorization: Bearer` with the key `admin` of DATA/keys.json; the command line reads it there, or in ROSKVA_ADMIN_KEY."

    def __init__(self) -> None:
        super().__init__("This is for operators, and their key was not shown.")


class CredentialRequired(BadRequest):
    code = "credential-required"
    status = 401
    advice = "Send a `credential` of the signed-in user."

    def __init__(self, application: object) -> None:
        super().__init__(f"Application {_shown(application)} asks who its users are.")


class CredentialRefused(BadRequest):
    code = "credential-refused"
    status = 401
    advice = "Sign in again, and send the new credential."


class CredentialExpired(BadRequest):
    code = "credential-expired"
    status = 401
    advice = "Send a new credential of the same user: registrations stay."

    def __init__(self) -> None:
        super().__init__("The credential has expired.")


class NotAuthorized(BadRequest):
    code = "not-authorized"
    status = 403
    advice = "Register for what this user may see, or let the application allow it."

    def __init__(self) -> None:
        super().__init__("This user may not register for this object.")


class EncodingRefused(BadRequest):
    code = "encoding-refused"
    status = 415
    advice = "Send it as it is, without Content-Encoding."

    def __init__(self, encoding: object) -> None:
        super().__init__(f"Bodies in the encoding {_shown(encoding)} are not read.")


class ChannelClosed(BadRequest):
    code = "channel-closed"
    status = 410
    advice = "Open a new one: everything unacknowledged is sent again."

    def __init__(self, reason: str) -> None:
        super().__init__(f"The channel is closed: {reason}.")


class InvalidSetting(BadRequest):
    code = "invalid-setting"
    advice = "docs/settings.md lists every setting."


class InvalidFilter(BadRequest):
    """Of what: a filter, a shard's rule, a mapping. `at` is where in the text the trouble begins, from 0."""

    code = "invalid-filter"
    advice = "Correct it in the settings of capture."

    def __init__(self, what: str, text: str, at: int, reason: str) -> None:
        super().__init__(f"The {what} {_shown(text)} cannot be read at character {at + 1}: {reason}.")
        self.at = at


class WrongHistory(BadRequest):
    code = "wrong-history"
    advice = "The database was restored, or this is a replica of another one: say where its flows shall begin anew."

    def __init__(self, position: object, reason: str) -> None:
        super().__init__(f"The position {position} is not of this log: {reason}.")


class LogCut(BadRequest):
    """`oldest` is the position after which everything can be read."""

    code = "log-cut"
    advice = "What is gone is reported to its subscribers as lost. Let the database keep more of its log."

    def __init__(self, wanted: object, oldest: object) -> None:
        super().__init__(f"The log begins after {oldest}: what follows {wanted} was cut off.")
        self.oldest = oldest


class CaptureRefused(BadRequest):
    code = "capture-refused"
    status = 403
    advice = "Give the right that is missing, or the key, and start it again."


class Unavailable(RoskvaError):
    code = "unavailable"
    status = 503
    transient = True
    advice = "Try again in a moment."
    retry_after_s: float = 1.0


class FeedFull(Unavailable):
    code = "feed-full"
    advice = "The pipeline must catch up first: `roskva status` shows its lag."
    retry_after_s = 5.0


class DiskFull(Unavailable):
    code = "disk-full"
    advice = "Free some space: it is accepted again by itself. `roskva status` shows how much there is."
    retry_after_s = 10.0


class PartitionUnavailable(Unavailable):
    """Raised by engines. `partition` names what may or may not have landed: do it again."""

    code = "partition-unavailable"

    def __init__(self, what: str, partition: str) -> None:
        super().__init__(what)
        self.partition = partition


class PartitionBusy(PartitionUnavailable):
    """Others are at it, or one of them stands still in the middle of a write. Nothing has landed."""

    code = "partition-busy"


class PartitionLost(PartitionUnavailable):
    """The file under an open connection is no longer the one that the manifest names. Nothing written since may count."""

    code = "partition-lost"


class Overloaded(Unavailable):
    """`retry_after_s`: when there will be room, if that is known."""

    code = "overloaded"

    def __init__(self, what: str = "", retry_after_s: float = Unavailable.retry_after_s) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class RateLimited(Unavailable):
    """`limit` names the setting that was reached; `retry_after_s`: when there is room again."""

    code = "rate-limited"
    status = 429
    advice = "Come more slowly."

    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"More than {limit} allows.")
        self.limit = limit
        self.retry_after_s = retry_after_s


class TooManyConnections(Unavailable):
    code = "too-many-connections"
    advice = "Close some, or come back later."
    retry_after_s = 10.0

    def __init__(self, limit: str) -> None:
        super().__init__(f"There are as many connections as {limit} allows.")
        self.limit = limit


class MemberConnected(Unavailable):
    code = "member-connected"
    advice = "Give each process a `member` of its own; one that lost its connection comes in after some seconds."
    retry_after_s = 10.0

    def __init__(self, member: str, application: str) -> None:
        super().__init__(f"A process {_shown(member)} of {_shown(application)} is connected, and another one comes under that name.")


class AuthorizationUnavailable(Unavailable):
    """`answered`: the HTTP status of the application's own service, if it gave one."""

    code = "authorization-unavailable"
    advice = "It is asked again; nothing is allowed meanwhile."
    answered: int = 0

    def __init__(self, what: str, answered: int = 0, retry_after_s: float = Unavailable.retry_after_s) -> None:
        super().__init__(what)
        self.answered = answered
        self.retry_after_s = retry_after_s


class GoingAway(Unavailable):
    """`retry_after_s`: all clients of this gateway come back within so long, each at a moment of its own."""

    code = "going-away"
    advice = "Connect again."

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("This gateway stops.")
        self.retry_after_s = retry_after_s


class SlowConsumer(Unavailable):
    code = "slow-consumer"
    advice = "Connect again: everything unacknowledged is sent again."


class ServiceUnreachable(Unavailable):
    code = "service-unreachable"
    advice = "Is it running? `roskva up` starts it; `--url` or ROSKVA_URL says where it is."


class DatastoreUnavailable(Unavailable):
    code = "datastore-unavailable"
    advice = "Nothing is lost: reading goes on where it was when the database answers again."


class FetchFailed(Unavailable):
    """`__cause__` is what the application's fetch raised, if it was called just now; `retry_in_s` is when the cache will call it again."""

    code = "fetch-failed"
    advice = "Ask again later, or use what the cache still holds (`peek`)."

    def __init__(self, name: object, reason: str, retry_in_s: float = 0.0) -> None:
        super().__init__(f"The object {_shown(name)} could not be fetched: {reason[:200]}.")
        self.reason = reason
        self.retry_in_s = retry_in_s


class DataOutdated(RoskvaError):
    code = "data-outdated"
    status = 409
    advice = "Run `roskva drop all`: clients start anew by themselves, and settings and keys stay."

    def __init__(self, path: object) -> None:
        super().__init__(f"The data directory {path} was made by an earlier version of Roskva, and there is no migration.")


class AddressInUse(RoskvaError):
    code = "address-in-use"
    status = 409
    advice = "Stop the other one, or choose another with --listen or --data."


class JavaMissing(RoskvaError):
    code = "java-missing"
    advice = "Install one (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME; `roskva doctor` shows what it finds."


class KeysUnusable(RoskvaError):
    code = "keys-unusable"
    advice = "Restore the file from a backup, or delete it: new keys are made, and every client starts anew."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"The keys in {path} cannot be used: {reason}.")


class StateInUse(RoskvaError):
    code = "state-in-use"
    advice = "Give each running client a state file of its own, or stop the other one first."

    def __init__(self, path: object) -> None:
        super().__init__(f"The state file {path} is held by another running client.")


class ClientStopped(RoskvaError):
    code = "client-stopped"
    advice = "Start a new client; give each running client a state file of its own."


class UsedAfterFork(RoskvaError):
    code = "used-after-fork"
    advice = "Make one per process, or use it first after the fork: its thread and its connection stay behind with the parent."

    def __init__(self, what: str) -> None:
        super().__init__(f"This {what} was started before the process was forked.")


REFERENCE = """\
# Errors

Generated from `src/roskva/errors.py` by `python -m roskva.errors`; a test keeps it up to date.

Every error has a `code` that does not change, a message for a person that ends with what to do, and says whether the same call
may succeed later (*transient*). In Python it is the exception; over HTTP and on a channel it is an object with the fields
`code`, `message` and `transient`.

| code | HTTP | transient | exception | what happened | what to do |
|---|---|---|---|---|---|
"""


def reference() -> str:
    """docs/errors.md, from the tree at the top and the classes below it. `python -m roskva.errors` prints it."""
    meanings = dict(re.findall(r"\+-- (\w+) +(.+)", __doc__ or ""))
    rows = []
    waiting: list[type[RoskvaError]] = [RoskvaError]
    while waiting:
        cls = waiting.pop()
        waiting.extend(reversed(cls.__subclasses__()))
        meaning = meanings.get(cls.__name__, "something that should not happen")
        transient = "yes" if cls.transient else "no"
        rows.append(f"| `{cls.code}` | {cls.status} | {transient} | `{cls.__name__}` | {meaning} | {cls.advice} |\n")
    return REFERENCE + "".join(rows)


if __name__ == "__main__":
    print(reference(), end="")


def from_report(code: str, message: str, transient: bool = False) -> RoskvaError:
    """The error that a service reported, as an exception of its own class; of a newer service's code, the nearest class.

    >>> from_report("feed-full", "The feed is full. The pipeline must catch up first: `roskva status` shows its lag.").what
    'The feed is full.'
    """
    kinds: dict[str, type[RoskvaError]] = {}
    classes: list[type[RoskvaError]] = [RoskvaError]
    while classes:
        kind = classes.pop()
        kinds[kind.code] = kind
        classes += kind.__subclasses__()
    kind = kinds.get(code, Unavailable if transient else BadRequest)
    error = kind.__new__(kind)
    # Subclasses build their sentence from what went wrong; here it has been built already, with the advice at its end.
    RoskvaError.__init__(error, message.removesuffix(kind.advice).rstrip() or code)
    if isinstance(error, PartitionUnavailable):
        error.partition = ""
    return error
