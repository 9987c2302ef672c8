"""Small requests to the service, for commands that ask one thing and end: no event loop, standard library only."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from roskva.errors import BadRequest, RoskvaError, ServiceUnreachable, Unavailable

DOOR: Final = "door"  # in place of http, of the URL of a gateway's own door: door:///data/run/gateway-1.sock
_NO_KEY: Final[Mapping[str, str]] = {}
# Local services are asked directly: a proxy of the environment is for the world outside.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(BadRequest):
    """The service answered with an error: its own words, which already say what to do."""

    advice = ""

    def __str__(self) -> str:
        return self.what


def checked_url(url: str) -> str:
    """The service's address without a slash at its end, or a clear error."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"{url!r} is not the address of a service: it should look like http://127.0.0.1:8470.")
    return url.rstrip("/")


def get_json(url: str, timeout_s: float = 10.0, shown: Mapping[str, str] = _NO_KEY) -> dict[str, Any]:
    """The object that the service answers with; text that is not JSON is answered as {"text": ...}. `shown`: the header with a key."""
    return _asked(urllib.request.Request(url), timeout_s, shown)


def post_json(url: str, value: object, timeout_s: float = 30.0, shown: Mapping[str, str] = _NO_KEY) -> dict[str, Any]:
    """The same, for a request that brings something along."""
    return _asked(urllib.request.Request(url, json.dumps(value).encode(), {"Content-Type": "application/json"}), timeout_s, shown)


def _asked(request: urllib.request.Request, timeout_s: float, shown: Mapping[str, str]) -> dict[str, Any]:
    for name, value in shown.items():
        request.add_unredirected_header(name, value)  # whoever an answer points to is not shown the key
    url = request.full_url
    try:
        with _opener.open(request, timeout=timeout_s) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error.code, error.read()) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ServiceUnreachable(f"{url} does not answer ({str(reason) or type(reason).__name__}).") from None
    return _object_in(body)


def _object_in(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {"text": body.decode(errors="replace")}
    return value if isinstance(value, dict) else {"value": value}


class Conversation:
    """Many small requests over one connection: when thousands of clients connect at once, each new one waits behind all of them.

    With a gateway that the caller itself has started on this machine, by an address or by its door: its certificate, which names a host of
    the world outside, is not looked at.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self._url, self._timeout_s = url, timeout_s
        self._connection: http.client.HTTPConnection
        if parts.scheme == DOOR:
            self._connection = _DoorConnection(Path(urllib.parse.unquote(parts.path)), timeout_s)
            return
        if parts.scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._connection = http.client.HTTPSConnection(str(parts.hostname), parts.port, timeout=timeout_s, context=context)
        else:
            self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s)

    def get_json(self, path: str, shown: Mapping[str, str] = _NO_KEY, timeout_s: float | None = None) -> dict[str, Any]:
        """As the function of that name, with a timeout of its own if one is given. After an error the next call connects anew."""
        self._connection.timeout = self._timeout_s if timeout_s is None else timeout_s
        try:
            if self._connection.sock is not None:
                self._connection.sock.settimeout(self._connection.timeout)
            self._connection.request("GET", path, headers=dict(shown))
            answer = self._connection.getresponse()
            body = answer.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise ServiceUnreachable(f"{self._url} does not answer ({str(error) or type(error).__name__}).") from None
        if answer.status >= 400:
            raise _refusal(self._url + path, answer.status, body)
        return _object_in(body)

    def close(self) -> None:
        self._connection.close()


class _DoorConnection(http.client.HTTPConnection):
    """To a Unix socket in a folder that may lie deep."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("gateway", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        from roskva.gateway.sharing import folder_path

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with folder_path(self._path.parent) as folder:
            self.sock.connect(f"{folder}/{self._path.name}")


def _refusal(url: str, status: int, body: bytes) -> RoskvaError:
    try:
        value = json.loads(body)
        report = value.get("error", value)
        return Refused(str(report["message"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        what = f"{url} answered with status {status}."
        return Unavailable(what) if status >= 500 else BadRequest(what)
