"""Small requests to the service, for commands that ask one thing and end: no event loop, standard library only."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from roskva.errors import BadRequest, RoskvaError, ServiceUnreachable, Unavailable

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


def get_json(url: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """The object that the service answers with; text that is not JSON is answered as {"text": ...}."""
    return _asked(urllib.request.Request(url), timeout_s)


def post_json(url: str, value: object, timeout_s: float = 30.0) -> dict[str, Any]:
    """The same, for a request that brings something along."""
    return _asked(urllib.request.Request(url, json.dumps(value).encode(), {"Content-Type": "application/json"}), timeout_s)


def _asked(request: urllib.request.Request, timeout_s: float) -> dict[str, Any]:
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
    try:
        value = json.loads(body)
    except ValueError:
        return {"text": body.decode(errors="replace")}
    return value if isinstance(value, dict) else {"value": value}


def _refusal(url: str, status: int, body: bytes) -> RoskvaError:
    try:
        value = json.loads(body)
        report = value.get("error", value)
        return Refused(str(report["message"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        what = f"{url} answered with status {status}."
        return Unavailable(what) if status >= 500 else BadRequest(what)
