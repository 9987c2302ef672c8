"""A strategy of the user's own (balance.py), named in the settings as package.module:function: imported, and tried, when they are read.

So whoever writes the settings learns at once what does not fit, and not when the first process of the application comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from roskva.capture.balance import Strategy, Subscriber
from roskva.errors import InvalidSetting


def own_strategy(named: str) -> Strategy:
    """Raises InvalidSetting."""
    module, _, name = named.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"There is no module {error.name!r}, which {named!r} needs: install it beside roskva, or name its directory in PYTHONPATH."
        ) from None
    except Exception as error:
        raise InvalidSetting(f"The module of {named!r} cannot be imported: {type(error).__name__}: {error}.") from None
    function = getattr(found, name, None)
    if not callable(function):
        raise InvalidSetting(f"{named!r} names no function: the module {module!r} has no function {name!r}.")
    _try(named, function)
    return function  # type: ignore[no-any-return]  # it was tried


def _try(named: str, function: Strategy) -> None:
    shards, members = [0, 1, 2], ["a", "b"]
    form = "it is called with (shards, placed, subscribers, dice), and answers a dict: shard -> the member that shall have it"
    try:
        answer: Any = function(shards, {0: "a"}, [Subscriber(member) for member in members], lambda: 0.5)
    except Exception as error:
        raise InvalidSetting(f"The strategy {named!r} raised {type(error).__name__}: {error}. {form.capitalize()}.") from None
    if not isinstance(answer, Mapping) or not all(shard in shards and isinstance(member, str) for shard, member in answer.items()):
        raise InvalidSetting(
            f"The strategy {named!r} answered {str(answer)[:80]} for the shards {shards} and the members {members}: {form}."
        )
