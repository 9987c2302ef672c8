"""An application's own service on 127.0.0.1, as webhooks call it and keys are fetched from it; and tokens that it signs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

NOW_S = 1_800_000_000.0
Answer = Callable[[web.Request, Any], Awaitable[web.Response]]


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Service:
    """`answer` may be replaced; what was asked is kept."""

    answer: Answer
    url: str = ""
    asked: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        content = await request.read()
        body = json.loads(content) if content else None
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        return await self.answer(request, body)


def answering(value: object, status: int = 200) -> Answer:
    async def answer(_request: web.Request, _body: Any) -> web.Response:
        return web.json_response(value, status=status)

    return answer


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Service]:
    service = Service(answer)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/asked"
        yield service
    finally:
        await runner.cleanup()


def pem(key: Ed25519PrivateKey | RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Ed25519PublicKey | RSAPublicKey, **more: object) -> dict[str, Any]:
    if isinstance(key, RSAPublicKey):
        return {**RSAAlgorithm.to_jwk(key, as_dict=True), **more}
    return {**OKPAlgorithm.to_jwk(key, as_dict=True), **more}


def token(key: Any, algorithm: str = "EdDSA", headers: dict[str, Any] | None = None, **claims: object) -> str:
    """Of alice, for an hour; a claim that is None is left out."""
    given: dict[str, object] = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 3600, **claims}
    return jwt.encode({name: value for name, value in given.items() if value is not None}, key, algorithm=algorithm, headers=headers)
