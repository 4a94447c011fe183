"""Parquet files that somebody else may have written, read in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from uedp_ray.files import check_regular

MAX_BYTES = 64 * 2**20
"""Of a table in memory. 10,000 trials with 20 settings take a tenth of it."""
_ROWS_AT_ONCE = 64


def read_bounded(path: Path, remedy: str, *, most_rows: int | None = None) -> pa.Table | None:
    """A whole table, read a few rows at a time: a small file may unpack to any size.

    None if it has more than ``most_rows`` rows, or takes more than ``MAX_BYTES``; what the file declares is looked at first.
    Raises: InputError with the ``remedy`` for what is no file; OSError and pa.ArrowException for what is no Parquet.
    """
    check_regular(path, remedy)
    with pq.ParquetFile(path, memory_map=True) as file:
        metadata = file.metadata
        stated = sum(metadata.row_group(index).total_byte_size for index in range(file.num_row_groups))
        if stated > MAX_BYTES or (most_rows is not None and metadata.num_rows > most_rows):
            return None
        parts, size, rows = [file.schema_arrow.empty_table()], 0, 0
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            parts.append(_decoded(pa.Table.from_batches([batch])))
            size, rows = size + parts[-1].nbytes, rows + parts[-1].num_rows
            if size > MAX_BYTES or (most_rows is not None and rows > most_rows):
                return None
        return pa.concat_tables(map(_decoded, parts))


def _decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries: a value that is held once and named a thousand times is counted a thousand times."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            table = table.set_column(index, pa.field(field.name, kind), table.column(index).cast(kind))
    return table
