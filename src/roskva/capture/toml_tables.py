"""Tables of a TOML file as frozen dataclasses: what is unknown or does not fit is refused, with its path and a guess at what was meant.

Pure. A field's type says what is expected, `setting` what it is for, which values fit, and when to change it. settings.py has the tables
of capture; `written` makes the lines of an example file of the same fields, so that the two cannot differ.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from roskva.errors import InvalidSetting

Table = TypeVar("Table")
NUMBER_MAX: Final = 2**63
_SIZE: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(KiB|MiB|GiB)", re.IGNORECASE)
_UNITS: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def setting(
    default: Any,
    when: str,
    *,
    least: float | None = None,
    most: float | None = None,
    one_of: Iterable[str] = (),
    pattern: str | None = None,
    form: str = "",
    example: Any = None,
    secret: bool = False,
) -> Any:
    """`default` MISSING: it must be given. Numbers are greater than 0 unless `least` says otherwise. `example` is of what has no useful
    default, and `secret` of what is never shown.
    """
    metadata = {"when": when, "least": least, "most": most, "one_of": tuple(one_of), "pattern": pattern, "form": form, "example": example}
    return field(repr=not secret, metadata=metadata) if default is MISSING else field(default=default, repr=not secret, metadata=metadata)


def table_of(kind: type[Table], given: object, path: str) -> Table:
    """Raises InvalidSetting. Fields without `setting` are not the file's: whoever asks fills them."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"{path} must be a table, not {_shown(given)}.")
    known = {item.name: item for item in _settable(kind)}
    for name in given:
        if name not in known:
            raise unknown(f"{path}.{name}", name, known)
    values = {}
    for name, item in known.items():
        if name in given:
            values[name] = _converted(item, given[name], f"{path}.{name}")
        elif item.default is MISSING:
            raise InvalidSetting(f"{path}.{name} must be given: {_lower(item.metadata['when'])}")
    return kind(**values)


def unknown(path: str, name: str, known: Iterable[str]) -> InvalidSetting:
    near = difflib.get_close_matches(name[:64].lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return InvalidSetting(
        f"There is no setting {path[:120]}." + (f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(known)}.")
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _settable(kind: type) -> list[Field[Any]]:
    return [item for item in fields(kind) if "when" in item.metadata]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _converted(item: Field[Any], value: object, path: str) -> Any:
    kind = str(item.type)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InvalidSetting(f"{path} must be true or false, not {_shown(value)}.")
        return value
    if kind.startswith("tuple"):
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts:
            raise InvalidSetting(f"{path} must be text, or a list of texts, not {_shown(value)}.")
        return tuple(_text(item, text, f"{path}[{number}]") for number, text in enumerate(texts))
    if kind in ("int", "float", "float | None"):
        return _number(item, value, path, whole=kind == "int")
    if kind not in ("str", "Path"):
        return value  # whoever asks converts it
    text = _text(item, value, path)
    return Path(text).expanduser() if text.startswith("~/") and kind == "Path" else Path(text) if kind == "Path" else text


def _text(item: Field[Any], value: object, path: str) -> str:
    if isinstance(value, str) and value == "" == item.default:
        return value  # as if it were not there
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidSetting(f"{path} must be text, not {_shown(value)}.")
    choices = item.metadata["one_of"]
    if choices and value not in choices:
        near = difflib.get_close_matches(value[:64].lower(), choices, n=1)
        raise InvalidSetting(
            f"{path} is {_shown(value)}; it must be one of {', '.join(choices)}." + (f" Did you mean {near[0]!r}?" if near else "")
        )
    pattern = item.metadata["pattern"]
    if pattern is not None and re.fullmatch(pattern, value) is None:
        raise InvalidSetting(f"{path} is {_shown(value)}; it must be {item.metadata['form']}.")
    return value


def _number(item: Field[Any], value: object, path: str, whole: bool) -> int | float:
    is_size = "_bytes" in item.name
    if is_size and isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        value = float(found[1]) * _UNITS[found[2].lower()]
    expected = ("a whole number" if whole else "a number") + (", or text such as '64 MiB'" if is_size else "")
    # Not a number (NaN) is not below anything.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < NUMBER_MAX or (whole and value != int(value)):
        raise InvalidSetting(f"{path} must be {expected}, not {_shown(value)}.")
    least, most = item.metadata["least"], item.metadata["most"]
    if least is None and value <= 0:
        raise InvalidSetting(f"{path} is {value}; it must be greater than 0.")
    if (least is not None and value < least) or (most is not None and value > most):
        limits = f"at least {least:,}" if most is None else f"at most {most:,}" if least is None else f"from {least:,} to {most:,}"
        raise InvalidSetting(f"{path} is {value}; it must be {limits}.")
    return int(value) if whole else float(value)


def written(kind: type, given: Mapping[str, Any]) -> str:
    """The lines of a table in an example file: `given` as they are, the rest as comments with their defaults."""
    lines = []
    for item in _settable(kind):
        lines.append(f"# {item.metadata['when']}")
        value = given.get(item.name, item.default)
        if value is MISSING or value in ("", (), None):
            value = item.metadata["example"]
        mark = "" if item.name in given else "# "
        lines.append(f"{mark}{item.name} = {toml_value(item.name, value)}")
    return "\n".join(lines)


def toml_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(name, one) for one in value) + "]"
    if isinstance(value, int | float) and "_bytes" in name and value >= 1 << 20 and value % (1 << 20) == 0:
        return f'"{int(value) >> 20} MiB"'
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = str(value)
    return f"'{text}'" if '"' in text and "'" not in text else json.dumps(text)
