"""Regular expressions of filters: the same answers as Python's, and never more time than the length of the value."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import settings as example_count
from hypothesis import strategies as st

from roskva.capture import expressions
from roskva.capture.expressions import BadExpression, compile_expression

# Each takes Python's own matcher minutes to centuries for the value beside it.
EVIL = [
    ("(a+)+b", "a" * 4_000),
    ("(a*)*b", "a" * 4_000),
    ("(a|a)*b", "a" * 4_000),
    ("(a|aa)+b", "a" * 4_000),
    ("(.*)*x", "y" * 4_000),
    (".*.*.*.*.*.*=.*z", "x" * 4_000),
    (".*a.*b.*c.*d", "abc" * 1_300),
    ("(x+x+)+y", "x" * 4_000),
    (r"([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@)[a-z]+", "a" * 4_000 + "!"),
    ("a?" * 50 + "a" * 50, "a" * 49),
    ("(((((a*)*)*)*)*)*c", "a" * 4_000),
    ("(0|1)*1(0|1){16}", "01101" * 800 + "x"),  # as a table of states it would have 2^17 of them
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("pattern", "value"), EVIL)
def test_an_evil_expression_is_answered(pattern: str, value: str) -> None:
    assert compile_expression(pattern)(value) is False


def nested(innermost: str, quantifier: str, depth: int) -> str:
    return "(" * depth + innermost + (")" + quantifier) * depth


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        (nested("", "{100}", 30), "", True),
        (nested("a{0}", "{100}", 30), "a", False),
        (nested("a{0}|", "{2,100}", 20) + "b", "b", True),
        (nested("()|()", "{100,}", 20), "", True),
        (nested("a", "{1}", 30), "a", True),
        (nested("a", "{0}", 30), "", True),
    ],
)
def test_brackets_that_hold_nothing_are_written_out_once(pattern: str, value: str, matches: bool) -> None:
    assert compile_expression(pattern)(value) is matches


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "pattern", ["(" + "()" * 50 + "a){100}", nested("a?()", "{100}", 30), nested("a|()", "{2,100}", 20), nested("a()", "{2}", 30)]
)
def test_what_cannot_be_built_in_a_bounded_number_of_steps_is_refused(pattern: str) -> None:
    with pytest.raises(BadExpression, match="with its repetitions written out"):
        compile_expression(pattern)


def test_what_is_remembered_is_bounded() -> None:
    node = expressions._Reader("(0|1)*1(0|1){20}").read()
    automaton = expressions._Automaton(node)
    digits = f"{0x5EED5EED5EED**200:b}"[:4_000]
    assert automaton.matches(digits) == (re.fullmatch("(0|1)*1(0|1){20}", digits) is not None)
    assert len(automaton._states) <= expressions.STATES_MAX


@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        ("", "", True),
        ("", "a", False),
        ("doc:.*", "doc:\n1", True),
        (r"\d{2,3}", "123", True),
        (r"\d{2,3}", "1234", False),
        (r"\d", "٣", False),
        ("[^a-c]+", "xyz", True),
        ("[^a-c]+", "xbz", False),
        (r"[\d\-x]{3}", "1-x", True),
        ("(?:ab|cd)+e?", "abcdabe", True),
        ("a{0}b", "b", True),
        ("a{2,}", "aaaaa", True),
        ("a{2,}", "a", False),
        ("(a|b?)*c", "abbac", True),
        (r"\.\*\\", ".*\\", True),
        ("[a-]", "-", True),
        (r"[^\s\S]", "a", False),
        ("ö+", "öö", True),
    ],
)
def test_what_matches(pattern: str, value: str, matches: bool) -> None:
    assert compile_expression(pattern)(value) is matches


@pytest.mark.parametrize(
    ("pattern", "at", "says"),
    [
        ("^abc", 0, "leave ^ away"),
        ("abc$", 3, "leave $ away"),
        (r"(a)\1", 3, "backreference"),
        ("a(?=b)", 1, "looking ahead"),
        ("(?i)abc", 0, "flags"),
        ("(?P<x>a)", 0, "names"),
        ("a**", 2, "one quantifier follows another"),
        ("a*?", 2, "lazy"),
        ("*a", 0, "nothing that * could repeat"),
        ("a{5,2}", 1, "2 is less than 5"),
        ("a{1000}", 1, "at most 100"),
        ("a{x}", 1, r"write \{"),
        ("(ab", 0, "not closed"),
        ("ab)", 2, "not opened"),
        ("[ab", 0, "not closed"),
        ("[]", 0, "no characters"),
        ("[z-a]", 1, "ends before it begins"),
        (r"[\d-z]", 1, "from one character to another"),
        (r"a\q", 1, r"\q is not known"),
        ("a\\", 1, "is not known"),
        ("(" * 40 + ")" * 40, 33, "deep"),
        ("((a{100}){100}){100}", 0, "more than 512"),
        ("a" * 300, 256, "300 characters"),
    ],
)
def test_what_is_refused_is_refused_with_its_place(pattern: str, at: int, says: str) -> None:
    with pytest.raises(BadExpression) as caught:
        compile_expression(pattern)
    assert caught.value.at == at
    assert says in caught.value.reason


ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\d", "(a|b)", "(?:ab|c|)", r"\.", "[a-c1]", r"\W", "-"])
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])
PARTS = st.tuples(ATOMS, QUANTIFIERS).map("".join)
SEQUENCES = st.lists(PARTS, max_size=4).map("".join)
GROUPS = st.tuples(st.lists(SEQUENCES, min_size=1, max_size=3).map("|".join), QUANTIFIERS).map(lambda pair: f"({pair[0]}){pair[1]}")
PATTERNS = st.lists(PARTS | GROUPS, max_size=4).map("".join)


@example_count(max_examples=400)
@given(PATTERNS, st.lists(st.text(alphabet="abc1.-\n", max_size=8), max_size=6))
def test_the_answers_are_those_of_python(pattern: str, values: list[str]) -> None:
    ours, theirs = compile_expression(pattern), re.compile(pattern, re.DOTALL | re.ASCII)
    automaton = expressions._Automaton(expressions._Reader(pattern).read())
    for value in values:
        expected = theirs.fullmatch(value) is not None
        assert ours(value) is expected
        assert automaton.matches(value) is expected  # also where `re` would be asked


@example_count(max_examples=300)
@given(st.text(alphabet="ab()[]{}*+?|\\^$.-,019:dwé", max_size=20))
def test_any_text_is_read_as_python_does_or_refused(pattern: str) -> None:
    place = 0
    values: tuple[str, ...] = ("", "a", "ab", "aab", "b1", pattern)
    try:
        ours = compile_expression(pattern)
    except BadExpression as error:
        place = error.at
        values = ()
    assert 0 <= place <= len(pattern)
    for value in values:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python announces that some sets may mean something else one day
            theirs = re.fullmatch(pattern, value, re.DOTALL | re.ASCII)
        assert ours(value) is (theirs is not None)
