"""What the options of several commands have in common. Commands are imported when they run (cli/main.py)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

DEFAULT_URL: Final = "http://127.0.0.1:8470"
SEEN_BY_OTHERS: Final = "what stands on a command line other users of this machine can read: use the variable or a file"
DATA_FOR_KEY: Final = "the service's data directory, for the key of operators (default: as `up` has it)"


def add_command(commands: Any, name: str, action: Callable[[argparse.Namespace], int], summary: str, more: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=action)
    return parser


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get("ROSKVA_URL", DEFAULT_URL),
        help=f"the service (default: ROSKVA_URL, or {DEFAULT_URL})",
    )


def positive(kind: type[int | float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not 0 < value < 1e9:
            raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
        return value

    convert.__name__ = "number"  # argparse: invalid number value: 'x'
    return convert
