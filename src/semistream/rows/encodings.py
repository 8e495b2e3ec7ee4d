"""Dictionaries and views of a stream: plain values inside a join, encoded again on the way out.

Every batch of a stream may have a dictionary of its own. Rows of many batches wait together and
leave together, so inside there are values only; a batch that leaves has one dictionary of the
values in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from .layout import check_columns, plain, plain_type


class Encodings:
    def __init__(self, schema: pa.Schema) -> None:
        check_columns(schema, "stream")
        self.outside = schema
        self.inside = pa.schema([f.with_type(plain_type(f.type)) for f in schema])
        pairs = zip(self.outside.types, self.inside.types, strict=True)
        self._encoded = [i for i, (a, b) in enumerate(pairs) if a != b]

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the stream as they are inside."""
        return pa.RecordBatch.from_arrays([plain(c) for c in batch.columns], schema=self.inside)

    def output_schema(self, inside: pa.Schema) -> pa.Schema:
        """The columns of the output: those of the stream as they came, then the others."""
        return pa.schema([*self.outside, *list(inside)[len(self.outside) :]])

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """An output batch with the stream's encodings; several, where its values are too many for
        the indices of one dictionary."""
        if not self._encoded:
            yield batch
            return
        columns = list(batch.columns)
        try:
            for i in self._encoded:
                columns[i] = _encoded(columns[i], self.outside.field(i).type)
        except pa.ArrowInvalid:
            if len(batch) < 2:
                raise
            half = len(batch) // 2
            yield from self.encode(batch.slice(0, half))
            yield from self.encode(batch.slice(half))
            return
        schema = self.output_schema(batch.schema)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _encoded(array: pa.Array, t: pa.DataType) -> pa.Array:
    """Plain values as a dictionary or a view. ArrowInvalid: too many for its indices."""
    if not pa.types.is_dictionary(t):
        return array.cast(t)
    try:
        found = array.dictionary_encode()
        indices, values = found.indices, found.dictionary
    except pa.ArrowNotImplementedError:  # nested values: once per row
        every = np.arange(len(array), dtype=np.int32)
        indices, values = pa.array(every, mask=np.asarray(array.is_null())), array
    return pa.DictionaryArray.from_arrays(
        indices.cast(t.index_type), values.cast(t.value_type), ordered=t.ordered
    )
