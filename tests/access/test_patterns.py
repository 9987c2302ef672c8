"""Patterns of objects' names: what they match, against regular expressions; what they must never match; and how long it takes at worst."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roskva.access.patterns import PATTERN_CHARACTERS_MAX, compile_patterns
from roskva.config import REGISTRABLE
from roskva.errors import InvalidSetting


def allows(pattern: str, name: str, **claims: Any) -> bool:
    return compile_patterns([pattern]).allow(claims, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*", "anything"),
        ("*", "base64:AAEC"),
        ("news", "news"),
        ("news:*", "news:"),
        ("news:*", "news:sport"),
        ("*:public", "a:public"),
        ("*:public", ":public"),
        ("a*b*c", "abc"),
        ("a*b*c", "a-b-b-c-c"),
        ("*a*", "a"),
        ("**", "x"),
        ("a**b", "ab"),
        ("{{x}}", "{x}"),
        ("{{*}}", "{anything}"),
        ("base64:*", "base64:AAEC"),
    ],
)
def test_matches(pattern: str, name: str) -> None:
    assert allows(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("news", "news2"),
        ("news", "new"),
        ("news:*", "news"),
        ("news:*", "old-news:x"),
        ("*:public", "a:public:b"),
        ("a*b*c", "acb"),
        ("a*b", "a"),
        ("ab*bc", "abc"),
        ("*a*a*", "a"),
        ("News:*", "news:x"),
        ("n?ws", "news"),
        ("n.ws", "news"),
        ("[n]ews", "news"),
    ],
)
def test_does_not_match(pattern: str, name: str) -> None:
    assert not allows(pattern, name)


def test_no_patterns_allow_nothing() -> None:
    assert not compile_patterns([]).allow({"sub": "alice"}, "x")


def test_any_of_several_patterns_is_enough() -> None:
    patterns = compile_patterns(["terms", "news:*", "faq:*", "inbox:{sub}", "*:of:{sub}"])
    claims = {"sub": "alice"}
    for name in ("terms", "news:1", "faq:", "inbox:alice", "x:of:alice"):
        assert patterns.allow(claims, name)
    for name in ("terms2", "new", "inbox:bob", "inbox:alice2", "x:of:bob", "inbox:"):
        assert not patterns.allow(claims, name)


@pytest.mark.parametrize(
    ("pattern", "name", "claims"),
    [
        ("inbox:{sub}", "inbox:alice", {"sub": "alice"}),
        ("{sub}", "alice", {"sub": "alice"}),
        ("tenant:{org}:*", "tenant:7:orders", {"org": 7}),
        ("tenant:{org}", "tenant:-7", {"org": -7}),
        ("tenant:{org}", "tenant:7", {"org": 7.0}),
        ("tenant:{org}", "tenant:7.5", {"org": 7.5}),
        ("team:{teams}", "team:red", {"teams": ["blue", "red"]}),
        ("team:{teams}", "team:2", {"teams": [1, 2]}),
        ("team:{teams}:*", "team:red:x", {"teams": ["re", "red", "blue"]}),
        ("{a}{b}", "xyz", {"a": ["x", "xy"], "b": ["z", "q"]}),
        ("{a}*{a}", "x-y", {"a": ["x", "y"]}),
        ("role:{realm.role}", "role:admin", {"realm": {"role": "admin"}}),
        ("role:{a.b.c}", "role:x", {"a": {"b": {"c": ["x"]}}}),
        ("role:{https://shop.example/role}", "role:x", {"https://shop.example/role": "x"}),
        ("{{{sub}}}", "{alice}", {"sub": "alice"}),
        ("many:{ids}:*", "many:77:x", {"ids": list(range(100))}),
    ],
)
def test_claims_stand_for_their_values(pattern: str, name: str, claims: dict[str, Any]) -> None:
    assert compile_patterns([pattern]).allow(claims, name)


@pytest.mark.parametrize(
    "claims",
    [
        {}, {"sub": ""}, {"sub": None}, {"sub": []}, {"sub": [""]}, {"sub": True}, {"sub": {"a": 1}}, {"sub": [["alice"]]}, {"sub": [None]},
        {"sub": float("nan")}, {"sub": float("inf")}, {"sub": 10**5000}, {"sub": b"alice"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("pattern", ["inbox:{sub}", "inbox:{sub}*", "inbox:*{sub}", "{sub}*"])
def test_a_claim_that_is_missing_empty_or_of_another_type_matches_nothing(pattern: str, claims: dict[str, Any]) -> None:
    patterns = compile_patterns([pattern])
    for name in ("inbox:", "inbox:alice", "inbox:True", "inbox:None", "inbox:{sub}", "inbox:nan", "inbox:inf", "alice"):
        assert not patterns.allow(claims, name)


@pytest.mark.parametrize("claims", [{"a": "x"}, {"a": {"b": {"c": 1}}}, {"a": [{"b": "x"}]}, {"a.b": ""}, {"a": None}, {"a": 7}])
def test_a_path_that_leads_nowhere_matches_nothing(claims: dict[str, Any]) -> None:
    for name in ("x", "{a.b}", "7", "1"):
        assert not compile_patterns(["{a.b}"]).allow(claims, name)


@pytest.mark.parametrize("value", ["*", "**", "a*", "*:*", "{sub}", "{admin}", ".*", "%", "_", "?", "[a-z]*"])
def test_a_claims_value_is_no_pattern(value: str) -> None:
    """Whoever chooses his own name must not register for everything by it."""
    claims = {"sub": value, "admin": "root", "list": [value], "many": [value] * 5 + [f"{value}{number}" for number in range(20)]}
    patterns = compile_patterns(["inbox:{sub}", "list:{list}", "many:{many}", "*:tail:{sub}"])
    for name in ("inbox:bob", "inbox:", "inbox:root", "inbox:a", "inbox:ab", "list:bob", "many:bob", "many:", "x:tail:bob", "anything"):
        assert not patterns.allow(claims, name)
    assert patterns.allow(claims, f"inbox:{value}")
    assert patterns.allow(claims, f"list:{value}")
    assert patterns.allow(claims, f"many:{value}")


ALPHABET = "ab*:"
PARTS = st.one_of(st.just("*"), st.text("ab:", min_size=1, max_size=3), st.sampled_from(["{one}", "{some}", "{many}", "{no}", "{in.it}"]))


def as_expression(pattern: str, claims: dict[str, Any]) -> str:
    def of(match: re.Match[str]) -> str:
        if match[0] == "*":
            return "(?s:.*)"
        if match[1] is None:
            return re.escape(match[0])
        value: Any = claims
        for step in match[1].split("."):
            value = value[step] if isinstance(value, dict) and step in value else None
        values = [text for text in (value if isinstance(value, list) else [value]) if text]
        return "(?:" + "|".join(map(re.escape, values)) + ")" if values else "(?!)"

    return re.sub(r"\*|\{([^}]*)\}|[^*{}]+", of, pattern)


VALUES = st.text(ALPHABET, max_size=3)


@given(st.lists(PARTS, min_size=1, max_size=6), VALUES, st.lists(VALUES, max_size=3), st.lists(VALUES, min_size=9, max_size=12), VALUES)
@example(["{some}", "*", "{some}"], "", ["a", "aa", "ab"], [], "")
def test_as_regular_expressions_would(parts: list[str], one: str, some: list[str], many: list[str], inner: str) -> None:
    pattern = "".join(parts)
    claims: dict[str, Any] = {"one": one, "some": some, "many": many, "in": {"it": inner}}
    compiled = compile_patterns([pattern])
    expression = re.compile(as_expression(pattern, claims))
    names = [
        "",
        "a",
        "b",
        "ab",
        "aab",
        "a:b",
        ":",
        "*",
        one,
        *some,
        one + "a",
        pattern,
        *(first + second for first in some for second in many),
    ]
    chosen = {"{one}": one, "{in.it}": inner, "{many}": (many or [""])[-1], "{some}": (some or [""])[0]}
    names += ["".join({**chosen, "*": run}.get(part, part) for part in parts) for run in ("", "ba")]
    for name in names:
        assert compiled.allow(claims, name) == (expression.fullmatch(name) is not None), name


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("inbox:{sub", 7),
        ("}", 1),
        ("a}b", 2),
        ("{}", 1),
        ("x{.}", 2),
        ("{a.}", 1),
        ("{a..b}", 1),
        ("{a b}", 1),
        ("{a*}", 1),
        ("{a{b}", 1),
        ("{{{", 3),
        ("{{x}", 4),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(pattern: str, place: int) -> None:
    with pytest.raises(InvalidSetting, match=rf"at character {place},"):
        compile_patterns(["ok", pattern])


@pytest.mark.parametrize("pattern", ["", "x" * (PATTERN_CHARACTERS_MAX + 1)])
def test_a_pattern_has_1_to_512_characters(pattern: str) -> None:
    with pytest.raises(InvalidSetting):
        compile_patterns([pattern])
    assert re.fullmatch(REGISTRABLE["pattern"], pattern) is None


@given(st.one_of(st.text("{}*.a ", max_size=12), st.text(max_size=20), st.sampled_from(["x" * 512, "{{" * 256, "{{" * 257, "x" * 513])))
def test_settings_refuse_what_cannot_be_compiled_and_nothing_else(pattern: str) -> None:
    try:
        compile_patterns([pattern])
    except InvalidSetting:
        compiles = False
    else:
        compiles = True
    assert (re.fullmatch(REGISTRABLE["pattern"], pattern) is not None) == compiles


@pytest.mark.parametrize(
    ("pattern", "claims", "name"),
    [
        ("a*" * 255 + "b", {}, "a" * 178),
        ("*a" * 255, {}, "a" * 177 + "b"),
        ("{c}*" * 100 + "b", {"c": ["a" * size for size in range(1, 120)]}, "a" * 178),
        ("{c}" * 100 + "b", {"c": ["a" * size for size in range(1, 120)]}, "a" * 178),
        ("*{c}*", {"c": [str(number) for number in range(4_000)]}, "x" * 178),
    ],
)
def test_no_pattern_claim_or_name_makes_it_slow(pattern: str, claims: dict[str, Any], name: str) -> None:
    patterns = compile_patterns([pattern])
    before_s = time.process_time()
    assert not patterns.allow(claims, name)
    assert time.process_time() - before_s < 2.0  # going back and forth would take years
