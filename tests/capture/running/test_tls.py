"""Publisher and subscribers over TLS, as the settings say; and that everything that cannot be used is named."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from roskva.capture.running.places import key_of
from roskva.capture.running.publisher import publish
from roskva.capture.running.tls import for_publisher, for_subscriber
from roskva.capture.settings import CaptureSettings, Files, load
from roskva.capture.stores.file_lines import Entry
from roskva.capture.stores.file_log import FileLog
from roskva.capture.subscriber import Callbacks, Subscriber
from roskva.capture.updates import Operation, Update
from roskva.errors import InvalidSetting
from tests.capture.stores.servers_postgres import free_port
from tests.gateway.certificates import Authority


@pytest.fixture
def pem(tmp_path: Path) -> Callable[[str], Path]:
    """Files: publisher.pem and .key, client.pem and .key, of two authorities, ca.pem and clients.pem."""
    authorities = {name: Authority(name) for name in ("ca", "clients")}
    for name, authority in authorities.items():
        (tmp_path / f"{name}.pem").write_text(authority.pem)
    authorities["ca"].certify(tmp_path / "publisher.pem", tmp_path / "publisher.key")
    authorities["clients"].certify(tmp_path / "client.pem", tmp_path / "client.key")
    (tmp_path / "nonsense.pem").write_text("nonsense")
    return lambda name: tmp_path / name


def settings_of(folder: Path, publisher: str = "", application: str = "") -> CaptureSettings:
    (folder / "log").mkdir(exist_ok=True)
    file = folder / "capture.toml"
    file.write_text(f"""
[dataset]
name = "shop"
[datastore]
kind = "files"
path = "{folder}/log"
[publisher]
listen = "127.0.0.1:{free_port()}"
data = "{folder}/d"
{publisher}
[applications.search]
start = "oldest"
{application}
""")
    return load(file)


@asynccontextmanager
async def publishing(settings: CaptureSettings) -> AsyncIterator[None]:
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(publish(settings, stop, ready=lambda _: ready.set()))
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        yield
    finally:
        stop.set()
        await task


class Kept(Callbacks):
    def __init__(self) -> None:
        self.came = asyncio.Event()

    def on_update(self, update: Update) -> None:
        self.came.set()


async def trouble(settings: CaptureSettings, tls: ssl.SSLContext | None) -> str:
    """Of a subscriber; none: it hears what is written."""
    assert isinstance(settings.datastore, Files)
    with FileLog(settings.datastore.path) as log:
        log.append([Entry(Operation.INSERT, "t", {"id": 1}, {"id": 1})])
    kept = Kept()
    publishers = [settings.publisher.listen]
    async with (
        Subscriber("search", key_of(settings, "search"), publishers, kept, "m", reconnect_s_max=0.2, tls=tls) as subscriber,
        asyncio.timeout(15),
    ):
        while not kept.came.is_set() and not subscriber.problems:
            await asyncio.sleep(0.01)
        return "" if kept.came.is_set() else str(next(iter(subscriber.problems.values())))


def pair(pem: Callable[[str], Path], name: str) -> str:
    return f'tls_certificate = "{pem(name + ".pem")}"\ntls_key = "{pem(name + ".key")}"\n'


async def test_subscribers_come_by_tls_alone_and_know_the_publisher(tmp_path: Path, pem: Callable[[str], Path]) -> None:
    settings = settings_of(tmp_path, pair(pem, "publisher"), f'tls_ca = "{pem("ca.pem")}"')
    async with publishing(settings):
        assert await trouble(settings, for_subscriber(settings, "search")) == ""
        assert "ended: closed" in await trouble(settings, None), "it speaks plainly"
        stranger = settings_of(tmp_path, pair(pem, "publisher"), f'tls_ca = "{pem("clients.pem")}"')
        assert "CERTIFICATE_VERIFY_FAILED" in await trouble(settings, for_subscriber(stranger, "search")), "it trusts another authority"
        # On the same machine the publisher's own certificate is trusted.
        beside = settings_of(tmp_path, pair(pem, "publisher"))
        assert await trouble(settings, for_subscriber(beside, "search")) == ""


async def test_subscribers_show_a_certificate_if_that_is_asked_for(tmp_path: Path, pem: Callable[[str], Path]) -> None:
    asked = f'{pair(pem, "publisher")}tls_client_ca = "{pem("clients.pem")}"'
    settings = settings_of(tmp_path, asked, pair(pem, "client"))
    async with publishing(settings):
        assert await trouble(settings, for_subscriber(settings, "search")) == ""
        for application in ("", pair(pem, "publisher")):  # it shows none, or one of another authority
            other = settings_of(tmp_path, asked, application)
            assert await trouble(settings, for_subscriber(other, "search"))


def test_without_a_certificate_all_is_plain(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert for_publisher(settings) is None
    assert for_subscriber(settings, "search") is None


@pytest.mark.parametrize(
    ("publisher", "application", "says"),
    [
        ('tls_certificate = "/nowhere"\ntls_key = "/nowhere"', "", "publisher.tls_certificate: the file /nowhere cannot be read"),
        ('tls_certificate = "P/nonsense.pem"\ntls_key = "P/publisher.key"', "", "are not a certificate chain and its unencrypted key"),
        ('tls_certificate = "P/publisher.pem"\ntls_key = "P/client.key"', "", "publisher.tls_key: the key in .*client.key does not belong"),
        (
            'tls_certificate = "P/publisher.pem"\ntls_key = "P/publisher.key"\ntls_client_ca = "P/nonsense.pem"', "",
            "publisher.tls_client_ca: .*nonsense.pem holds no certificates",
        ),
        ("", 'tls_ca = "/nowhere"', "applications.search.tls_ca: /nowhere cannot be read"),
        ("", 'tls_ca = "P/nonsense.pem"', "applications.search.tls_ca: .*nonsense.pem holds no certificates in PEM"),
        ("", 'tls_ca = "P/ca.pem"\ntls_certificate = "P/ca.pem"\ntls_key = "P/client.key"', "applications.search.tls_key: the key in"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, pem: Callable[[str], Path], publisher: str, application: str, says: str
) -> None:
    folder = str(pem("x").parent)
    settings = settings_of(tmp_path, publisher.replace("P/", f"{folder}/"), application.replace("P/", f"{folder}/"))
    with pytest.raises(InvalidSetting, match=says):
        for_publisher(settings) if publisher else for_subscriber(settings, "search")
