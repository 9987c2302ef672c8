"""What is refused, and what is warned of, before a port is opened to other machines (gateway/exposure.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roskva.access.publish_keys import hash_of, new_key
from roskva.config import ApplicationSettings, Settings
from roskva.errors import InvalidSetting
from roskva.gateway.exposure import check_exposure

KEYED = ApplicationSettings(publish_keys=(hash_of(new_key()),))
CLOSED = replace(KEYED, authentication="jwt", jwt_keys="keys.pem")
WORLD = "0.0.0.0:8470"


@pytest.mark.parametrize("listen", ["127.0.0.1:8470", "127.8.9.1:0", "[::1]:8470", "localhost:8470"])
def test_on_this_machine_everything_works_without_keys(listen: str) -> None:
    assert check_exposure(Settings(listen=listen, internal_listen=listen)) == []


@pytest.mark.parametrize("address", [WORLD, "[::]:8470", "10.0.0.7:8470", "gateway-1:8470", "[2001:db8::1]:80"])
@pytest.mark.parametrize("setting", ["listen", "internal_listen"])
def test_other_machines_are_refused_with_what_is_missing_and_how_to_add_it(address: str, setting: str) -> None:
    applications = {"closed": CLOSED, "demo": ApplicationSettings(), "shop": KEYED}
    settings = Settings(applications=applications)
    with pytest.raises(InvalidSetting) as refused:
        check_exposure(replace(settings, listen=address) if setting == "listen" else replace(settings, internal_listen=address))
    said = str(refused.value)
    assert f"{setting} is {address}" in said
    assert "`roskva app key add demo`" in said
    assert 'in [applications.demo]: authentication = "jwt"' in said
    assert "in [applications.shop]" in said
    assert "key add shop" not in said
    assert "closed" not in said.replace("closed networks", "")
    assert "--insecure" in said


def test_insecure_is_warned_of_once() -> None:
    insecure, plain = check_exposure(Settings(listen=WORLD, insecure=True))
    assert "anybody may publish to demo" in insecure
    assert "tls_certificate" in plain
    assert len(check_exposure(Settings(listen=WORLD, insecure=True, tls_certificate="c.pem", tls_key="k.pem"))) == 1


def test_with_keys_and_users_only_tls_is_asked_for() -> None:
    closed = Settings(listen=WORLD, internal_listen="10.0.0.7:0", applications={"closed": CLOSED})
    (warning,) = check_exposure(closed)
    assert "without TLS" in warning
    assert check_exposure(replace(closed, tls_certificate="c.pem", tls_key="k.pem")) == []
    assert check_exposure(replace(closed, listen="127.0.0.1:8470")) == []  # calls between gateways prove that they know a key
