"""The public interface of channels: what carries messages between one client and a gateway (docs/protocol.md, Channels). Pure."""

from __future__ import annotations

from collections.abc import Callable


class Channel:
    """One end of a way for messages: an application carries Roskva over a connection that it has already.

    Two methods. A subclass defines `send`, which Roskva calls with each message for the other side; whoever reads the connection calls
    `received` with each message that came from the other side. A message is some bytes of UTF-8, passed on whole and unchanged. The way
    may lose messages, repeat them and change their order: whatever matters is said again. All methods are called on the event loop's
    thread (from another one: `loop.call_soon_threadsafe(channel.received, data)`).

    The client's end is given to `Client(channel=...)`, the gateway's end to `gateway.port.attach(...)`: one such pair for each client.
    Two more only save time: `interrupted`, to be called at the client's end, and `ended`, which a subclass may define there.
    """

    _listener: Callable[[bytes], None] | None = None
    _interrupted: Callable[[], None] | None = None

    def send(self, data: bytes) -> None:
        """Carry this message to the other side, soon. Must not block; what cannot be carried now is dropped."""
        raise NotImplementedError(f"{type(self).__name__} does not define send")

    def received(self, data: bytes) -> None:
        """The other side's message came. Dropped if nobody listens at this end, or not any more."""
        if self._listener is not None:
            self._listener(data)

    def interrupted(self) -> None:
        """The way was interrupted, and the other side may have forgotten this one: the client speaks again, without waiting for silence."""
        if self._interrupted is not None:
            self._interrupted()

    def ended(self) -> None:
        """The client at this end is closed, or begins again. Who can tell the other side so may do it here."""

    def listen(self, listener: Callable[[bytes], None] | None, interrupted: Callable[[], None] | None = None) -> None:
        """For Roskva: who is told of what comes from now on."""
        self._listener = listener
        self._interrupted = interrupted
