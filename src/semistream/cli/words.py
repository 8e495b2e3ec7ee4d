"""What all commands have in common on the command line."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import Any


def command(
    found: Any, name: str, text: str, run: Callable[..., Any], help: str, examples: str
) -> ArgumentParser:
    parser: ArgumentParser = found.add_parser(
        name,
        help=help,
        description=text,
        epilog=f"examples:\n{examples}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--json", action="store_true", help="print the result, or the error, as one JSON object")
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="progress on standard error [only on a terminal]",
    )
    return parser
