"""A filter as a function of an update: what the publisher calls for every change and application (Wormhole 3.2).

Pure. filters.py says what a filter means. Each basic filter becomes one closure that was chosen by its key and its test, so that nothing is
looked up twice while the log goes by.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias

from roskva.capture.expressions import compile_expression
from roskva.capture.filters import NUMBER, OF_UPDATE, VALUE_CHARACTERS_MAX, Basic, Between, Exists, Filter, Key, Matches, OneOf, Test
from roskva.capture.positions import BEGINNING
from roskva.capture.updates import Change, Operation, Update, Value, of_many

Passes: TypeAlias = Callable[[int, Change], bool]


class _Undecided:
    pass


_UNDECIDED: Final = _Undecided()


def compile_filter(wanted: Filter) -> Passes:
    """Whether an update, of this shard, passes. It never raises, whatever the update holds."""
    groups = [_all_of([_basic(basic) for basic in group]) for group in wanted.groups]
    if len(groups) == 1:
        return groups[0]

    def any_of(shard: int, change: Change) -> bool:
        for group in groups:  # noqa: SIM110  # called for every change: a generator costs more than the rest
            if group(shard, change):
                return True
        return False

    return any_of


def for_updates(wanted: Filter) -> Callable[[Update], bool]:
    """The same of an update that has its shard with it, as the publisher asks."""
    passes = compile_filter(wanted)
    return lambda update: passes(update[0], update[1])


def for_tables(wanted: Filter) -> Callable[[str, str], bool]:
    """Whether any update of this database and table may pass: what is asked of its rows and shard may be so."""
    passes = compile_filter(
        Filter(tuple(tuple(basic for basic in group if basic.key.of in ("table", "database")) for group in wanted.groups))
    )
    return lambda database, table: passes(0, Change(BEGINNING, 0, Operation.INSERT, database, table, {}, {}))


def _all_of(basics: list[Passes]) -> Passes:
    if not basics:
        return lambda shard, change: True
    if len(basics) == 1:
        return basics[0]
    first, *rest = basics
    if len(rest) == 1:
        second = rest[0]
        return lambda shard, change: first(shard, change) and second(shard, change)

    def all_of(shard: int, change: Change) -> bool:
        for basic in basics:  # noqa: SIM110
            if not basic(shard, change):
                return False
        return True

    return all_of


def _basic(basic: Basic) -> Passes:
    wanted = not basic.negated
    if basic.key.of in OF_UPDATE:
        return _of_update(basic.key.of, basic.test, wanted)
    fetch, passes = _fetch(basic.key), _test(basic.test)

    def of_row(shard: int, change: Change) -> bool:
        value = fetch(change)
        if value is _UNDECIDED:
            return True
        found = passes(value)  # type: ignore[arg-type]  # mypy does not know that there is one _Undecided only
        return found is _UNDECIDED or found is wanted

    return of_row


def _of_update(key: str, test: Test, wanted: bool) -> Passes:
    """These are always there, and of one kind each: most filters begin with one of them."""
    if isinstance(test, Exists):
        return lambda shard, change: wanted
    if isinstance(test, OneOf):
        values = frozenset(test.values)
        match key:
            case "table":
                return lambda shard, change: (change.table in values) is wanted
            case "database":
                return lambda shard, change: (change.database in values) is wanted
            case "operation":
                return lambda shard, change: (change.operation in values) is wanted
        return lambda shard, change: (shard in values) is wanted
    passes = _test(test)

    def asked(shard: int, change: Change) -> bool:
        found = passes(shard if key == "shard" else change.table if key == "table" else change.database)
        return found is _UNDECIDED or found is wanted

    return asked


def _fetch(key: Key) -> Callable[[Change], Value | _Undecided]:
    name = key.name
    match key.of:
        case "key":
            return lambda change: change.key[name] if name in change.key else _UNDECIDED if _left_out(change, name) else None
        case "old":
            return lambda change: None if change.old_key is None else change.old_key.get(name)
        case "attached":
            return lambda change: None if change.attached is None else change.attached.get(name)

    def of_column(change: Change) -> Value | _Undecided:
        if name in change.columns:
            return change.columns[name]
        return _UNDECIDED if _left_out(change, name) or _key_alone(change) else None

    def of_anything(change: Change) -> Value | _Undecided:
        if name in change.columns:
            return change.columns[name]
        if name in change.key:
            return change.key[name]
        if _left_out(change, name) or _key_alone(change):  # what is attached comes after a column that may be there
            return _UNDECIDED
        return None if change.attached is None else change.attached.get(name)

    return of_column if key.of == "column" else of_anything


def _left_out(change: Change, name: str) -> bool:
    """Whether the row, or its key, may have this column although the log has not: of rows that went together it has none."""
    return name in change.unchanged or of_many(change)


def _key_alone(change: Change) -> bool:
    """Whether the log has no more of a deleted row, which may have had any other column."""
    return change.operation is Operation.DELETE and change.columns.keys() <= change.key.keys()


def _test(test: Test) -> Callable[[Value], bool | _Undecided]:
    match test:
        case Exists():
            return lambda value: value is not None
        case OneOf():
            return _one_of(test)
        case Between():
            return _between(test)
        case Matches():
            return _matches(test)


def _one_of(test: OneOf) -> Callable[[Value], bool | _Undecided]:
    texts = frozenset(value for value in test.values if isinstance(value, str))
    encoded = frozenset(text.encode(errors="surrogatepass") for text in texts)
    truths = frozenset(value for value in test.values if isinstance(value, bool))
    numbers: frozenset[int | Decimal | None] = frozenset(
        value for value in test.values if isinstance(value, int | Decimal) and not isinstance(value, bool)
    )
    floats = frozenset(
        float(number) for number in numbers if number is not None
    )  # what a filter calls 0.1 is the double that a column has for it

    def one_of(value: Value) -> bool:
        kind = type(value)
        if kind is str:
            return value in texts or (bool(numbers) and _number(str(value)) in numbers)
        if kind is int:
            return value in numbers
        if kind is float:
            return value in floats
        if kind is bytes:
            return value in encoded
        return kind is bool and value in truths

    return one_of


def _between(test: Between) -> Callable[[Value], bool | _Undecided]:
    low, high = test.low, test.high
    low_float, high_float = None if low is None else float(low), None if high is None else float(high)

    def between(value: Value) -> bool:
        if isinstance(value, str):
            number = _number(value)
            return number is not None and (low is None or low <= number) and (high is None or number <= high)
        if isinstance(value, float):
            return (low_float is None or low_float <= value) and (high_float is None or value <= high_float)
        if isinstance(value, int) and not isinstance(value, bool):
            return (low is None or low <= value) and (high is None or value <= high)
        return False

    return between


def _matches(test: Matches) -> Callable[[Value], bool | _Undecided]:
    matched = compile_expression(test.expression)

    def matches(value: Value) -> bool | _Undecided:
        if isinstance(value, bytes):
            if len(value) > 4 * VALUE_CHARACTERS_MAX:
                return _UNDECIDED
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return False
        if not isinstance(value, str):
            return False
        return _UNDECIDED if len(value) > VALUE_CHARACTERS_MAX else matched(value)

    return matches


def _number(text: str) -> Decimal | None:
    """What a database has written as a decimal number."""
    return Decimal(text) if NUMBER.fullmatch(text) else None
