"""join_batches: a whole stream through one join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from .adapt import Pace
from .conditions import Condition
from .join import SemiStreamJoin
from .master import Source
from .question import On
from .spec import Params


def join_batches(
    batches: Iterable[pa.RecordBatch],
    master: Source,
    on: On | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    algorithm: str = "auto",
    memory: int | str = "64MB",
    params: Params | None = None,
    *,
    suffix: str | None = None,
    condition: Condition | None = None,
    ordered: bool = False,
    matched_column: str | None = None,
    validate: str | None = None,
    adapt: bool | Pace = False,
) -> Iterator[pa.RecordBatch]:
    """Join all batches of a stream; output comes as soon as it is complete."""
    with SemiStreamJoin(
        master,
        on,
        how,
        columns,
        algorithm,
        memory,
        params,
        suffix=suffix,
        condition=condition,
        ordered=ordered,
        matched_column=matched_column,
        validate=validate,
        adapt=adapt,
    ) as join:
        for batch in batches:
            yield from join.push(batch)
        yield from join.drain()
