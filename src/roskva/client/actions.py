"""What the client's core asks of its shell, in the order in which it must happen (Thialfi, Figure 2: NotificationListener).

Pure: frozen data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roskva.errors import RoskvaError
from roskva.model import name_to_text
from roskva.protocol.messages import ClientMessage


@dataclass(frozen=True, slots=True)
class Notification:
    """An object changed. `version` is the latest one known; none means unknown: fetch the object whatever you hold.

    >>> Notification(b"hello", version=7)
    Notification(name=b'hello', version=7, epoch=0, seqno=0)
    >>> Notification(b"hello").unknown
    True
    """

    name: bytes
    version: int | None = None
    epoch: int = 0  # raised when the application is reset; versions compare as (epoch, version)
    seqno: int = 0  # the server's; names the delivery in its acknowledgement
    session: int = field(default=0, repr=False)  # counts the sessions of this run: a seqno of one may mean something else in the next

    @property
    def object(self) -> str:
        """The name as text: as it is if it is printable UTF-8, else `base64:` and base64url."""
        return name_to_text(self.name)

    @property
    def unknown(self) -> bool:
        return self.version is None


@dataclass(frozen=True, slots=True)
class Send:
    """Send this over the channel. It may get lost: the core repeats what needs an answer."""

    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand this to the application; then call `acknowledge`, or `give_back` if the application did not take it."""

    notification: Notification


@dataclass(frozen=True, slots=True)
class StatusChanged:
    name: bytes
    registered: bool


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """Transient: the core tries again by itself. Else the object is no longer wished for: register it again, or give it up."""

    name: bytes
    transient: bool
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ReissueRegistrations:
    """The application may state its registrations now. Those that it stated in this run the core restates by itself."""


@dataclass(frozen=True, slots=True)
class WriteState:
    """Keep these bytes and hand them to the core of the next start. Opaque."""

    state: bytes


@dataclass(frozen=True, slots=True)
class Reported:
    """The server refused something as a whole. For the log."""

    code: str
    message: str
    transient: bool


@dataclass(frozen=True, slots=True)
class CredentialWanted:
    """The server did nothing for want of a credential, or refused the one it got (`code` and `message` are its own); or, with the code
    `credential-refresh`, the one that is in use soon ends. Whoever has another gives it to `use_credential`."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CredentialAccepted:
    good_s: float  # from now; 0: for as long as the session


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """The connection is of no use any more: close it, and connect again unless the client was stopped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The client ended by itself, for this reason. Nothing will come any more."""

    error: RoskvaError


Action = (
    Send
    | Notify
    | StatusChanged
    | RegistrationFailed
    | ReissueRegistrations
    | WriteState
    | Reported
    | CredentialWanted
    | CredentialAccepted
    | CloseChannel
    | Stopped
)
