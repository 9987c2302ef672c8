"""Who may do what: publish keys, users' credentials, which objects a user may register for, and how much of everything.

What needs cryptography or a connection is imported when it is asked for: the pure modules (identity, patterns, limits) bring in nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roskva.access.identity import Identity
from roskva.access.limits import Bucket, Buckets
from roskva.access.patterns import Patterns, compile_patterns

if TYPE_CHECKING:
    from roskva.access.authorization import Authorization
    from roskva.access.credentials import Credentials
    from roskva.access.deciding import Access, check_access
    from roskva.access.webhooks import Webhooks

__all__ = [
    "Access",
    "Authorization",
    "Bucket",
    "Buckets",
    "Credentials",
    "Identity",
    "Patterns",
    "Webhooks",
    "check_access",
    "compile_patterns",
]

_MODULES = {
    "Access": "deciding",
    "Authorization": "authorization",
    "Credentials": "credentials",
    "Webhooks": "webhooks",
    "check_access": "deciding",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
