"""Parquet files that somebody else may have written, or that are damaged: read in bounded memory, or refused.

Example:

    with refusing_damage(InputError("path", str(path), "is damaged: run prepare again")):
        table = pq.read_table(path)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from uedp_ray.errors import InputError
from uedp_ray.storage.files import check_regular

MAX_BYTES = 64 * 2**20
"""Of a table in memory. 10,000 trials with 20 settings take a tenth of it."""
_ROWS_AT_ONCE = 64
_LEAST_A_ROW = 64
"""Bytes that a row counts for, whatever it holds: a column of nothing takes none, and may have any number of rows."""


@contextmanager
def refusing_damage(refusal: InputError) -> Iterator[None]:
    """Raises ``refusal`` for whatever Arrow, and Python with what it returns, make of a damaged file: any exception may be.

    Every Parquet file is read within one. Other refusals pass, and so does what is no file's fault: too little memory, and
    what the system says, such as that nothing is there or too many files are open.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):  # else of a size that is none
            raise
        raise refusal from None


def read_bounded(path: Path, remedy: str, *, most_rows: int | None = None) -> pa.Table | None:
    """A whole table, read a few rows at a time: a small file may unpack to any size.

    None if it has more than ``most_rows`` rows, or takes more than ``MAX_BYTES``; what the file declares is looked at first.
    It holds what it says: text is UTF-8, offsets are in range.
    Raises: InputError with the ``remedy`` for what is no file, or no Parquet; OSError.
    """
    check_regular(path, remedy)
    refusal = InputError(path.name, str(path), f"is no Parquet file that can be read: {remedy}")
    with refusing_damage(refusal), pq.ParquetFile(path, memory_map=True) as file:
        metadata = file.metadata
        stated = sum(metadata.row_group(index).total_byte_size for index in range(file.num_row_groups))
        stated += _LEAST_A_ROW * metadata.num_rows
        if stated > MAX_BYTES or (most_rows is not None and metadata.num_rows > most_rows):
            return None
        parts, size, rows = [file.schema_arrow.empty_table()], 0, 0
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            parts.append(_decoded(pa.Table.from_batches([batch])))
            size, rows = size + parts[-1].nbytes + _LEAST_A_ROW * len(batch), rows + len(batch)
            if size > MAX_BYTES or (most_rows is not None and rows > most_rows):
                return None
        table = pa.concat_tables(map(_decoded, parts)).replace_schema_metadata()  # which pandas would act on
        table.validate(full=True)
        return table.rename_columns(table.column_names)  # which may be no UTF-8


def _decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries: a value that is held once and named a thousand times is counted a thousand times."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            table = table.set_column(index, pa.field(field.name, kind), table.column(index).cast(kind))
    return table
