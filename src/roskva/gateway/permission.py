"""Who may call what over HTTP: operators show the key `admin` of keys.json, backends a publish key of their application (docs/http.md).

Operators' calls are refused before anything of the request is read. Of a publish the body names the application, so it must be read; but
whoever shows a key of no application, and there is none that everybody may publish to, is refused before. Whoever shows no key of an
application, or a wrong one, does not learn whether it exists, unless no application has any keys.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from multidict import CIMultiDictProxy

from roskva.access.publish_keys import hash_of, is_one_of
from roskva.config import ApplicationSettings, LiveApplications
from roskva.errors import AdministrationRefused, PublishKeyRefused
from roskva.telemetry.metrics import Metrics

# Raises PublishKeyRefused where the caller may not publish to the application.
MayPublish = Callable[[str], None]


class Asked(Protocol):
    """The part of a request that tells who asks."""

    @property
    def headers(self) -> CIMultiDictProxy[str]: ...
    @property
    def transport(self) -> asyncio.Transport | None: ...


_NOTHING_SEEN: Final[Mapping[str, ApplicationSettings]] = {}


class Permission:
    def __init__(self, applications: LiveApplications, admin_key: str, metrics: Metrics) -> None:
        self.admin_key = admin_key  # empty: nobody is an operator
        self._applications = applications
        self._metrics = metrics
        # Of the applications as they were last seen: all hashes of keys, and whether there is an application without any.
        self._seen = _NOTHING_SEEN
        self._hashes: frozenset[str] = frozenset()
        self._some_are_open = True

    def administer(self, request: Asked) -> None:
        """Raises AdministrationRefused for whoever is no operator."""
        if not self._is_operator(shown_key(request)):
            self._metrics.administration_refused += 1
            raise AdministrationRefused

    def publish(self, request: Asked) -> MayPublish:
        """Raises PublishKeyRefused for whoever may publish to no application; answers what decides for each."""
        self._look()
        if not self._hashes:
            return everywhere
        key = shown_key(request)
        if self._is_operator(key):
            return everywhere
        if not self._some_are_open and (not key or hash_of(key) not in self._hashes):
            self._refuse(None)

        def may(application: str) -> None:
            settings = self._applications.get(application)
            if settings is None or (settings.publish_keys and not (key and is_one_of(key, settings.publish_keys))):
                self._refuse(application)

        return may

    def known_hash(self, request: Asked) -> str:
        """Of the publish key that the request shows; empty: it shows none that an application has."""
        self._look()
        key = shown_key(request) if self._hashes else ""
        shown = hash_of(key) if key else ""
        return shown if shown in self._hashes else ""

    def _refuse(self, application: str | None) -> None:
        self._metrics.publish_keys_refused += 1
        raise PublishKeyRefused(application)

    def _look(self) -> None:
        now = self._applications.now
        if now is not self._seen:
            self._seen = now
            self._hashes = frozenset(known for settings in now.values() for known in settings.publish_keys)
            self._some_are_open = any(not settings.publish_keys for settings in now.values())

    def _is_operator(self, key: str) -> bool:
        shown, known = (text.encode("utf-8", "surrogatepass") for text in (key, self.admin_key))
        return bool(known) and hmac.compare_digest(shown, known)


def everywhere(application: str) -> None:
    """May publish to any."""


def shown_key(request: Asked) -> str:
    """The key that the request shows; empty: none."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""
