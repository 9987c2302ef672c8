"""The Bridge's two halves agree: what Spark's expressions and the strict check make of a value is what `forms` makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from roskva.config import ApplicationSettings
from roskva.matcher.forms import Form, Malformed, check, extract, form_of
from roskva.model import Update, object_key
from roskva.pipeline.bridge import bridge
from roskva.pipeline.events import COLUMNS, decode_dead_letter, read_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

APPLICATIONS = {
    "demo": ApplicationSettings(),
    "shop": ApplicationSettings(object_path="doc.id", version_path="doc.rev", source_path="by"),
    "mine": ApplicationSettings(source_path="from"),
    "odd": ApplicationSettings(object_path="a b.c'd", version_path="version", source_path="$.x"),
}
VALUES: list[tuple[str, bytes]] = [
    ("demo", b'{"object":"a","version":1}'),
    ("demo", b'{"object":"a","version":0,"source":"phone"}'),
    ("demo", b'{"object":"a","version":9223372036854775807,"source":""}'),
    ("demo", b'{"object":"a","version":"9223372036854775807"}'),
    ("demo", b'{"object":"a","version":9223372036854775808}'),
    ("demo", b'{"object":"a","version":-1}'),
    ("demo", b'{"object":"a","version":"007"}'),
    ("demo", b'{"object":"a","version":" 7"}'),
    ("demo", b'{"object":"a","version":1.0}'),
    ("demo", b'{"object":"a","version":1e3}'),
    ("demo", b'{"object":"a","version":true}'),
    ("demo", b'{"object":"a","version":null}'),
    ("demo", b'{"object":"a"}'),
    ("demo", b'{"version":1}'),
    ("demo", b'{"version":1,"source":"s"}'),
    ("demo", b'{"object":"a","source":5}'),
    ("demo", b'{"object":"","version":1}'),
    ("demo", b'{"object":5,"version":1}'),
    ("demo", b'{"object":-5,"version":1}'),
    ("demo", b'{"object":1.5,"version":1}'),
    ("demo", b'{"object":1.50,"version":1}'),
    ("demo", b'{"object":123456789012345678901234567890,"version":1}'),
    ("demo", b'{"object":12345678901234567890123456789012345678901234567890,"version":1}'),
    ("demo", b'{"object":true,"version":1}'),
    ("demo", b'{"object":null,"version":1}'),
    ("demo", b'{"object":{"x":1},"version":1}'),
    ("demo", b'{"object":["x"],"version":1}'),
    ("demo", '{"object":"ü☃😀\\u00fc","version":1}'.encode()),
    ("demo", b'{"object":"\\ud83d\\ude00","version":1}'),
    ("demo", b'{"object":"\\ud800","version":1}'),
    ("demo", b'{"object":"a\\u0000b\\n\\"","version":1}'),
    ("demo", b'{"object":"base64:_w","version":1}'),
    ("demo", b'{"object":"base64:?","version":1}'),
    ("demo", b'{"object":"' + b"x" * 129 + b'","version":1}'),
    ("demo", b'{"object":"a","version":1} x'),
    ("demo", b'{"object":"a","version":1}{"object":"b","version":2}'),
    ("demo", b' \n {"object" : "a" , "version" : 1 } \n'),
    ("demo", b'{"object":"a","object":"b","version":1,"version":2}'),
    ("demo", b'{"object":"\xff","version":1}'),
    ("demo", b"\xff\xfe\x00"),
    ("demo", b"nonsense"),
    ("demo", b""),
    ("demo", b"[1]"),
    ("demo", b'"x"'),
    ("demo", b"null"),
    ("demo", b"{'object':'a','version':1}"),
    ("demo", b'{"object":"a","version":NaN}'),
    ("demo", b'{"object":"a","version":1,}'),
    ("demo", b'\xef\xbb\xbf{"object":"a","version":1}'),
    ("demo", b'{"object":"a","version":1,"source":7}'),
    ("demo", b'{"object":"a","version":1,"source":true}'),
    ("demo", b'{"object":"a","version":1,"source":null}'),
    ("demo", b'{"object":"a","version":1,"source":1.5}'),
    ("demo", b'{"object":"a","version":1,"source":{"x":1}}'),
    ("demo", b'{"object":"a","version":1,"source":"' + b"y" * 129 + b'"}'),
    ("demo", b'{"object":"a","version":1,"x":' + b"[" * 998 + b"]" * 998 + b"}"),
    ("demo", b'{"version":1,"object":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    ("shop", b'{"doc":{"id":"sku-1","rev":12},"by":"till"}'),
    ("shop", b'{"doc":{"id":"sku-1"},"rev":12}'),
    ("shop", b'{"doc":[{"id":"sku-1","rev":12}]}'),
    ("shop", b'{"doc":"sku-1"}'),
    ("shop", b'{"doc.id":"sku-1","doc.rev":12}'),
    ("shop", b'{"object":"a","version":1}'),
    ("odd", b'{"a b":{"c\'d":"x"},"version":3,"$":{"x":"s"}}'),
]
# The same in a form that is to be translated, so that Spark's reader meets them.
VALUES += [("mine", value.replace(b'"source"', b'"from"')) for application, value in VALUES if application == "demo"]


def through_spark(spark: SparkSession, values: list[tuple[str, bytes]]) -> list[Any]:
    rows = [("updates", 0, number, 1, 2, application.encode(), value) for number, (application, value) in enumerate(values)]
    schema = "topic string, partition int, offset long, incarnation long, time_ms long, headers binary, value binary"
    frame: DataFrame = bridge(spark.createDataFrame(rows, schema), APPLICATIONS)

    def plain(value: Any) -> Any:
        return bytes(value) if isinstance(value, bytearray) else value

    return [tuple(plain(row[name]) for name in COLUMNS) for row in frame.collect()]


def by_forms(application: str, value: bytes) -> Update | Malformed:
    fields = extract(value, form_of(APPLICATIONS[application]))
    return fields if isinstance(fields, Malformed) else check(application, 3, fields)


def test_spark_and_forms_agree_on_every_value(spark: SparkSession) -> None:
    rows = through_spark(spark, VALUES)
    assert len(rows) == len(VALUES)
    forms = {name: form_of(application) for name, application in APPLICATIONS.items()}
    for row, (application, value) in zip(rows, VALUES, strict=True):
        events = read_events([row], forms, lambda _: 3)
        expected = by_forms(application, value)
        if isinstance(expected, Malformed):
            assert not events.updates, value
            letter = decode_dead_letter(events.letters[0].value)
            assert (letter.code, letter.reason) == expected, value
        else:
            assert [update for update, _ in events.updates] == [expected], value


def test_the_usual_forms_are_taken_out_by_spark_alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(value: bytes, form: Form) -> Malformed:
        raise AssertionError("the Bridge should have been enough")

    monkeypatch.setattr("roskva.pipeline.events.extract", never)
    values = [
        ("mine 5", b'{"object":"a","version":7,"from":"d","epoch":17,"again":true}'),  # its own words do not count
        ("shop", b'{"doc":{"id":8,"rev":"9"}}'),
    ]
    forms = {name: form_of(application) for name, application in APPLICATIONS.items()}
    events = read_events(through_spark(spark, values), forms, lambda _: 3)
    assert [update for update, _ in events.updates] == [
        Update(object_key("mine", 5, b"a"), 7, "d"),
        Update(object_key("shop", 3, b"8"), 9, ""),
    ]


def test_what_a_sweep_brought_back_is_read_in_the_standard_form(spark: SparkSession) -> None:
    values = [("shop 5 again 12 1", b'{"object":"a","version":7}')]
    forms = {name: form_of(application) for name, application in APPLICATIONS.items()}
    events = read_events(through_spark(spark, values), forms, lambda _: 3)
    assert [update for update, _ in events.updates] == [Update(object_key("shop", 5, b"a"), 7, "", again=True)]


def test_what_is_in_the_standard_form_is_left_to_the_matcher(spark: SparkSession) -> None:
    rows = [("updates", b"demo", b'{"object":"a","version":1}'), ("updates", b"mine", b'{"object":"a","version":1}')]
    frame = spark.createDataFrame(rows, "topic string, headers binary, value binary")
    demo, mine = bridge(frame, APPLICATIONS).collect()
    assert (demo["object"], demo["version"], demo["source"]) == (None, None, None)
    assert (bytes(mine["object"]), bytes(mine["version"]), mine["source"], mine["kinds"]) == (b"a", b"1", None, "STRING,BIGINT")


def test_without_forms_of_their_own_nothing_is_planned(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("updates", b"demo", b'{"object":"a","version":1}')], "topic string, headers binary, value binary")
    bridged = bridge(frame, {"demo": ApplicationSettings()})
    row = bridged.collect()[0]
    assert [row[name] for name in ("object", "version", "source", "kinds")] == [None] * 4
    plan = bridged._jdf.queryExecution().toString()
    assert "parse_json" not in plan
