"""What one address, one application and one client may take (gateway/admission.py), by a clock of the test's own."""

from __future__ import annotations

import json

import pytest

from roskva.config import ApplicationSettings, LiveApplications, Settings
from roskva.errors import OriginRefused, RateLimited, TooManyConnections
from roskva.gateway.admission import Admission
from roskva.gateway.routing import Party
from roskva.telemetry.metrics import Metrics

SHOP = "https://shop.example"


class Line:
    """A connection that keeps what it is told."""

    def __init__(self, address: str = "", origin: str = "", application: str = "") -> None:
        self.number = 1
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self.session: object | None = None
        self.address = address
        self.party = Party(origin, application)
        self.told: list[str] = []
        self.closed: list[str] = []

    def send(self, data: bytes) -> None:
        self.told.append(json.loads(data)["error"]["code"])

    def close(self, code: str) -> None:
        self.closed.append(code)


class Rig:
    def __init__(self, **changes: object) -> None:
        applications = LiveApplications(
            {
                "shop": ApplicationSettings(messages_per_s_max=5.0, connections_max=2, origins=(SHOP,)),
                "wiki": ApplicationSettings(messages_per_s_max=50.0),
            }
        )
        self.applications = applications
        self.metrics = Metrics()
        self.now_s = 1_000.0
        settings = Settings(applications=applications, **changes)  # type: ignore[arg-type]
        self.admission = Admission(settings, self.metrics, lambda: self.now_s)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.admission.sweep(self.now_s)

    def heard(self, line: Line, messages: int) -> int:
        return sum(self.admission.spoke(line) for _ in range(messages))


def test_messages_within_the_rate_cost_no_bucket() -> None:
    rig, line = Rig(), Line(application="shop")
    for _ in range(20):
        assert rig.heard(line, 5) == 5
        assert not rig.admission._paces
        rig.pass_time(1)
    assert not rig.admission._spoken


def test_a_burst_of_ten_seconds_is_allowed_then_the_rate() -> None:
    rig, line = Rig(), Line(application="shop")
    assert rig.heard(line, 80) == 50
    assert rig.metrics.limited_messages == 30
    assert line.told == ["rate-limited"]
    for _ in range(5):
        rig.pass_time(1)
        assert rig.heard(line, 20) == 5  # not twice of it
    assert line.told == ["rate-limited"] * 6  # once a second


def test_what_is_left_of_a_burst_comes_back_and_the_bucket_goes() -> None:
    rig, line = Rig(), Line(application="shop")
    assert rig.heard(line, 50) == 50
    rig.pass_time(9)
    assert rig.admission._paces
    rig.pass_time(2)
    assert not rig.admission._paces
    assert rig.heard(line, 60) == 50


def test_before_the_application_is_known_the_lowest_rate_counts_then_its_own() -> None:
    rig = Rig()
    assert rig.heard(Line(), 100) == 50
    assert rig.heard(Line(application="wiki"), 600) == 500


def test_whoever_goes_on_is_closed() -> None:
    rig, line = Rig(), Line(application="shop")
    assert rig.heard(line, 50 + 500) == 50
    assert line.closed == []  # ten bursts were refused
    assert rig.heard(line, 1) == 0
    assert line.closed == ["rate-limited"]


def test_rates_follow_the_settings() -> None:
    rig, line = Rig(), Line(application="shop")
    rig.applications.replace({"shop": ApplicationSettings(messages_per_s_max=0.05)})
    rig.pass_time(1)
    assert rig.heard(line, 5) == 1  # one at least
    rig.applications.replace({"shop": ApplicationSettings(messages_per_s_max=100.0)})
    rig.pass_time(30)
    assert rig.heard(line, 2_000) == 1_000


def test_a_connection_that_is_gone_leaves_nothing() -> None:
    rig = Rig()
    line = Line(address="192.0.2.1")
    rig.admission.count(line.address)
    rig.admission.opened(line)
    rig.admission.session_began(line, "shop")
    rig.admission.unfinished.grew(line, 100_000)
    rig.heard(line, 60)
    assert rig.admission.connections_of("shop") == 1
    rig.admission.gone(line)
    assert rig.admission.connections_of("shop") == 0
    assert not rig.admission._of_address
    assert not rig.admission._of_application
    assert not rig.admission.strangers
    assert not rig.admission.unfinished
    assert not rig.admission._spoken
    assert not rig.admission._paces


def test_connections_of_an_application_are_counted_by_its_name() -> None:
    rig = Rig()
    lines = [Line() for _ in range(3)]
    for line in lines[:2]:
        rig.admission.name(line, "shop")
        rig.admission.session_began(line, "shop")
    rig.admission.session_began(lines[0], "shop")  # another session of the same client
    rig.admission.name(lines[0], "shop")
    with pytest.raises(TooManyConnections, match="connections_max of the application"):
        rig.admission.name(lines[2], "shop")
    assert rig.metrics.limited_connections_of_application == 1
    for line in lines[1:]:
        rig.admission.name(line, "wiki")  # without a limit
        rig.admission.session_began(line, "wiki")  # one of them had spoken for the other
    assert (rig.admission.connections_of("shop"), rig.admission.connections_of("wiki")) == (1, 2)
    rig.admission.name(lines[2], "shop")
    rig.admission.name(lines[2], "nobody")  # not known: the Registrar says so
    assert lines[2].party == Party("", "wiki")
    rig.admission.session_ended(lines[2])
    assert rig.admission.connections_of("wiki") == 1
    assert lines[2].party == Party("", "")


def test_strangers_do_not_count_for_the_application_that_they_name() -> None:
    rig = Rig()
    for _ in range(10):
        rig.admission.name(Line(), "shop")  # two may be connected
    assert rig.admission.connections_of("shop") == 0


def test_of_many_that_are_admitted_at_once_those_above_the_limit_are_closed() -> None:
    rig = Rig()
    lines = [Line() for _ in range(4)]
    for line in lines:
        rig.admission.name(line, "shop")
    for line in lines:
        rig.admission.session_began(line, "shop")
    rig.admission.gone(lines[3])
    rig.pass_time(1)
    assert [line.closed for line in lines] == [[], [], ["too-many-connections"], []]
    assert lines[2].told == ["too-many-connections"]
    assert rig.metrics.limited_connections_of_application == 1


def test_a_stranger_is_one_until_a_session_speaks_and_again_when_it_ends() -> None:
    rig, line = Rig(), Line()
    rig.admission.opened(line)
    rig.admission.name(line, "shop")
    assert rig.admission.strangers == {line: 1_000.0}
    rig.admission.session_began(line, "shop")
    assert not rig.admission.strangers
    rig.pass_time(50)
    rig.admission.session_ended(line)
    rig.pass_time(1)
    rig.admission.session_ended(line)  # said twice
    assert rig.admission.strangers == {line: 1_050.0}


def test_connections_of_an_address_are_counted_and_those_without_limits_are_not() -> None:
    rig = Rig(connections_per_address_max=2)
    for _ in range(2):
        assert rig.admission.has_room("192.0.2.1")
        rig.admission.count("192.0.2.1")
    assert not rig.admission.has_room("192.0.2.1")
    assert rig.metrics.limited_connections_of_address == 1
    assert rig.admission.has_room("192.0.2.2")
    for _ in range(5):
        assert rig.admission.has_room("")
        rig.admission.count("")
    rig.admission.leave("192.0.2.1")
    assert rig.admission.has_room("192.0.2.1")


def test_handshakes_of_an_address_have_a_rate() -> None:
    rig = Rig(handshakes_per_address_per_s=0.5)
    line = Line(address="192.0.2.1")
    for _ in range(10):
        rig.admission.handshake(line)
    with pytest.raises(RateLimited) as limited:
        rig.admission.handshake(line)
    assert limited.value.retry_after_s == pytest.approx(2.0)
    assert rig.metrics.limited_handshakes == 1
    rig.admission.handshake(Line(address="192.0.2.2"))
    for _ in range(50):
        rig.admission.handshake(Line())  # without limits
    rig.now_s += 2.0
    rig.admission.handshake(line)


def test_a_page_speaks_only_with_an_application_that_lists_it() -> None:
    rig, line = Rig(), Line(origin=SHOP)
    with pytest.raises(OriginRefused):
        rig.admission.name(line, "wiki")
    with pytest.raises(OriginRefused):
        rig.admission.name(line, "nobody")
    assert rig.metrics.origins_refused == 2
    rig.admission.name(line, "shop")
    rig.admission.session_began(line, "shop")
    assert line.party == Party(SHOP, "shop")
    rig.applications.replace({"shop": ApplicationSettings()})
    with pytest.raises(OriginRefused):
        rig.admission.name(line, "shop")  # not any more


def test_connections_of_one_kind_share_their_party() -> None:
    rig = Rig()
    lines = [Line(origin=SHOP) for _ in range(2)]
    for line in lines:
        rig.admission.session_began(line, "shop")
    assert lines[0].party is lines[1].party
