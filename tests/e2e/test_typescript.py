"""The TypeScript client and its publisher against a real service: clients/typescript/test/real-service.ts tells what it does."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from roskva.access.publish_keys import hash_of, new_key
from tests.access.service import pem
from tests.clients.stdio import NODE, PACKAGE

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CHANNELS = ("websocket as websocket", "long-poll as long-poll", "long-poll as auto")
EACH = ("told", "told after the connection was cut", "the same client after a restart", "forgotten")
TABS = ("three of them over one connection", "another leads when the first is closed", "one signs out, and all have ended")


def test_every_channel_cut_connections_restarts_signing_out_and_tabs(service: Service, tmp_path: Path) -> None:
    done = subprocess.run(
        [NODE, PACKAGE / "test" / "real-service.ts", service.url, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.splitlines() == [f"{channel}: {what}" for channel in CHANNELS for what in EACH] + [f"tabs: {what}" for what in TABS]


USERS = ("a key that is refused", "a forged credential, then one that counts", "what she may not have", "a provider that is asked in time")


def test_users_and_publish_keys(tmp_path: Path) -> None:
    signing, key, public = Ed25519PrivateKey.generate(), new_key(), tmp_path / "shop.pem"
    public.write_bytes(pem(signing))
    table = {"publish_keys": [hash_of(key)], "authentication": "jwt", "jwt_keys": str(public), "jwt_leeway_s": 0}
    table |= {"registrable": ["inbox:{sub}", "news:*"]}
    file = tmp_path / "roskva.toml"
    file.write_text("[applications.shop]\n" + "".join(f"{name} = {json.dumps(one)}\n" for name, one in table.items()))
    service = Service(tmp_path / "data", "--config", str(file)).start()

    def credential(by: Ed25519PrivateKey, lasts_s: int) -> str:
        now_s = int(time.time())
        return jwt.encode({"sub": "ann", "iat": now_s, "exp": now_s + lasts_s}, by, algorithm="EdDSA")

    shown = [credential(Ed25519PrivateKey.generate(), 3600), credential(signing, 25), credential(signing, 3600)]
    try:
        program = [str(NODE), str(PACKAGE / "test" / "real-users.ts"), service.url, key, *shown]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    finally:
        service.stop()
    assert done.returncode == 0, done.stdout[-4000:]
    assert tuple(done.stdout.splitlines()) == USERS
    logged = service.log.read_text()
    assert not any(secret in logged for secret in (key, *shown))
