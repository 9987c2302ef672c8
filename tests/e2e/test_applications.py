"""Applications that come while a real service runs: from `roskva app create` to a client that is told; what logs say of private ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from roskva.keys import administration
from tests.e2e.service import Service

pytestmark = pytest.mark.e2e

NEW_FORM = '\n[applications.wiki]\nobject_path = "doc.id"\nversion_path = "doc.rev"\n'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "roskva.toml"
    file.write_text("# ours\n")
    return file


@pytest.fixture(scope="module")
def service(file: Path) -> Iterator[Service]:
    running = Service(file.parent / "data", "--config", str(file)).start()
    yield running
    running.stop()


def until_known(service: Service, application: str) -> None:
    deadline_s = time.monotonic() + 10
    while application not in service.get("/v1/status")["applications"]:
        assert time.monotonic() < deadline_s, "the gateway did not take the application up"
        time.sleep(0.1)


def watched(service: Service, name: str) -> str:
    """What a client that comes now is told first."""
    said = service.run("watch", name, "--count", "1", "--timeout", "60", timeout_s=90)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def test_a_publish_to_an_application_that_was_just_created_reaches_a_client(service: Service, file: Path) -> None:
    pipeline, gateway = service.child("pipeline"), service.child("gateway")
    made = service.run("app", "create", "shop", "--config", str(file))
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    until_known(service, "shop")
    with subprocess.Popen(
        [sys.executable, "-m", "roskva", "watch", "shop/hello", "--count", "2", "--timeout", "60", "--url", service.url],
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "shop/hello unknown\n"  # registered; nobody knows a version yet
        published = service.run("publish", "shop/hello", "7", "--key", key)
        assert published.returncode == 0, published.stderr
        assert watching.stdout.readline() == "shop/hello 7\n"
        assert watching.wait(60) == 0
    refused = service.run("publish", "shop/hello", "8", "--key", "rk_of_somebody_else")
    assert refused.returncode == 1
    assert "No key of application 'shop'" in refused.stderr
    assert watched(service, "shop/hello") == "shop/hello 7"
    assert (service.child("pipeline"), service.child("gateway")) == (pipeline, gateway)  # nothing was started again


def test_a_form_of_its_own_counts_without_a_restart(service: Service, file: Path) -> None:
    file.write_text(file.read_text() + NEW_FORM)
    until_known(service, "wiki")
    body = json.dumps({"application": "wiki", "raw": [{"doc": {"id": "page", "rev": 4}, "object": "no", "version": 9}]}).encode()
    with urlopen(Request(f"{service.url}/v1/publish", data=body, headers=administration(service.data)), timeout=10) as answer:
        assert json.load(answer) == {"results": [{"ok": True}]}
    deadline_s = time.monotonic() + 30
    while True:
        try:
            assert service.get("/v1/objects/wiki/page")["version"] == 4
            break
        except HTTPError:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    assert service.get("/v1/dead-letters")["letters"] == []


def test_names_of_private_objects_are_in_no_log(service: Service, file: Path) -> None:
    secret = "patient-4711"
    file.write_text(file.read_text() + "\n[applications.clinic]\nprivate_names = true\n")
    until_known(service, "clinic")
    good: list[object] = [{"object": secret, "version": 1}]
    bad: list[object] = [
        {"object": secret, "version": -1},
        {"object": secret},
        f"{secret} is no update",
        {"object": secret * 20, "version": 1},
    ]
    body = json.dumps({"application": "clinic", "raw": good + bad}).encode()
    with urlopen(Request(f"{service.url}/v1/publish", data=body, headers=administration(service.data)), timeout=10) as answer:
        assert answer.status == 200
    assert watched(service, f"clinic/{secret}") == f"clinic/{secret} 1"
    assert service.get(f"/v1/inspect/objects/clinic/{secret}")["version"] == "1"
    deadline_s = time.monotonic() + 30
    while sum(letter["application"] == "clinic" for letter in service.get("/v1/dead-letters")["letters"]) < len(bad):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    for log in (service.data / "log" / "gateway.log", service.data / "log" / "pipeline.log", service.log):
        assert secret not in log.read_text(), log


def test_a_bad_file_changes_nothing_and_is_in_the_log(service: Service, file: Path) -> None:
    good = file.read_text()
    file.write_text(good + "\n[applications.shop]\n")
    log = service.data / "log" / "gateway.log"
    deadline_s = time.monotonic() + 10
    while "the settings in use stay" not in log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert "shop" in service.get("/v1/status")["applications"]
    file.write_text(good)
