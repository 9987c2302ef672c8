"""Keys that take a while to make, and a clock that stands still."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from tests.access.service import Clock


@pytest.fixture(scope="session")
def ed_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="session")
def rsa_key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def clock() -> Clock:
    return Clock()
