"""What anybody could print of an error."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def everything(error: BaseException | None) -> Iterator[str]:
    """All that anybody could print of an error: of the one it came from and of the one that was
    being handled, too, though Python would not show it."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield from (str(one), repr(one), repr(one.args), repr(vars(one)))
        yield "".join(traceback.format_exception(one))
        todo += [one.__cause__, one.__context__]
