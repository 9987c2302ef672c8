"""Who may call what over HTTP: operators show the key `admin` of keys.json (docs/http.md, Who may call).

Checked before anything of the request is read. Whoever shows no key, or a wrong one, learns nothing but that.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from aiohttp import web

from roskva.errors import AdministrationRefused
from roskva.telemetry.metrics import Metrics


@dataclass(slots=True)
class Permission:
    admin_key: str  # empty: nobody is an operator
    metrics: Metrics

    def administer(self, request: web.Request) -> None:
        """Raises AdministrationRefused for whoever is no operator."""
        if not self._is_operator(shown_key(request)):
            self.metrics.administration_refused += 1
            raise AdministrationRefused

    def _is_operator(self, key: str) -> bool:
        return bool(self.admin_key) and hmac.compare_digest(key.encode(), self.admin_key.encode())


def shown_key(request: web.Request) -> str:
    """The key that the request shows; empty: none."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""
