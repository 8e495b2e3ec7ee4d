"""What all commands have in common on the command line."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import SpecError
from ..safety import address, check_path


class Parser(ArgumentParser):
    """Says what it did not understand without the passwords of the addresses among it."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = [*self._words, *(sys.argv[1:] if args is None else args)]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        for word in sorted(self._words, key=len, reverse=True):
            value = word.split("=", 1)[-1] if word.startswith("--") else word
            for said in (value, repr(value)[1:-1]):
                message = message.replace(said, address(value))
        super().error(message)


def local(text: str) -> Path:
    """A path on this machine. What looks like an address is refused before anything shows it."""
    try:
        check_path(text)
    except SpecError as error:
        raise ArgumentTypeError(str(error)) from None
    return Path(text)


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
