"""Write docs/api.md from the docstrings of everything public.

    .venv/bin/python scripts/write_api.py

A test compares the file with what this would write, so it is never older than the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = ("semistream", "semistream.spark", "semistream.testing")
TARGET = Path(__file__).resolve().parent.parent / "docs" / "api.md"
HEAD = """# API reference

Every public name with its docstring. `scripts/write_api.py` writes this file; change the code.
"""
WIDTH = 96


def write() -> str:
    return "\n".join([HEAD, *(line for name in MODULES for line in _module(name))])


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## {name}\n"
    for public in module.__all__:
        thing = getattr(module, public)
        if not callable(thing):
            known = ", ".join(f"`{key}`" for key in thing)
            yield f"### {public}\n\nA mapping with the keys {known}.\n"
            continue
        yield f"### {public}\n"
        yield from _signature(public, thing)
        yield f"{_words(thing)}\n"
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            yield from _members(public, thing)


def _members(owner: str, cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            if inspect.getdoc(member):
                yield f"**{owner}.{name}**: {_prose(inspect.getdoc(member) or '')}\n"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            function = getattr(cls, name)
            if inspect.getdoc(function):
                yield from _signature(f"{owner}.{name}", function)
                yield f"{_words(function)}\n"


def _signature(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        bases = ", ".join(base.__name__ for base in thing.__bases__)
        yield f"```pyi\nclass {name}({bases})\n```\n"
        return
    signature = inspect.signature(thing)
    shown = [_parameter(p) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    stars = [p.kind for p in signature.parameters.values() if p.name not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in stars and inspect.Parameter.VAR_POSITIONAL not in stars:
        shown.insert(stars.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = signature.return_annotation
    after = "" if gives in (signature.empty, "None", None) else f" -> {gives}"
    text = f"{name}({', '.join(shown)}){after}"
    if len(text) > WIDTH:
        text = "\n    ".join([f"{name}(", *(f"{each}," for each in shown)]) + f"\n){after}"
    yield f"```pyi\n{text}\n```\n"


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = f"{stars}{each.name}"
    if each.annotation is not each.empty:
        text += f": {each.annotation}"
    if each.default is each.empty:
        return text
    plain = isinstance(each.default, str | int | float | bool | tuple | None)
    return f"{text} = {each.default!r}" if plain else f"{text} = ..."


def _words(thing: Any) -> str:
    own = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and own.startswith(f"{thing.__name__}("):
        own = ""  # what a dataclass says of itself without a docstring
    return _prose(own)


def _prose(text: str) -> str:
    """Examples and indented parts as blocks, the rest as it is."""
    parts = []
    for part in re.split(r"\n\s*\n", text):
        code = part.startswith((">>>", "    "))
        parts.append(f"```pycon\n{part}\n```" if code else part)
    return "\n\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(write())
    print(f"wrote {TARGET}")
