"""Reads Parquet files that may be damaged or written by somebody else: in bounded memory, or refuses them.

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
"""The largest table in memory. 10,000 trials with 20 settings take a tenth of it."""
_ROWS_AT_ONCE = 64
_LEAST_A_ROW = 64
"""Bytes added for every row: an empty column takes none, and may have any number of rows."""


@contextmanager
def refusing_damage(refusal: InputError) -> Iterator[None]:
    """Raises ``refusal`` for any exception of Arrow, or of Python with what Arrow returned: a damaged file may cause any.

    Every Parquet file is read inside it. Other refusals pass through, and so do errors that are not the file's fault: too
    little memory, and errors of the system, such as a missing file or too many open files.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):  # Arrow's: a bogus size
            raise
        raise refusal from None


def read_bounded(path: Path, remedy: str, *, most_rows: int | None = None) -> pa.Table | None:
    """Reads a whole table, a few rows at a time: a small file may unpack to any size.

    Returns: the table, validated (text is UTF-8, offsets are in range); None if it has more than ``most_rows`` rows or takes
      more than ``MAX_BYTES``. What the file declares is checked first.
    Raises: InputError with the ``remedy`` for anything but a regular file of Parquet; OSError.
    """
    check_regular(path, remedy)
    refusal = InputError(path.name, str(path), f"is not a readable Parquet file: {remedy}")
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
        table = pa.concat_tables(map(_decoded, parts)).replace_schema_metadata()  # pandas would act on it
        table.validate(full=True)
        return table.rename_columns(table.column_names)  # fails for names that are not UTF-8


def _decoded(table: pa.Table) -> pa.Table:
    """The table without dictionaries: a value stored once and used a thousand times is counted a thousand times."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            table = table.set_column(index, pa.field(field.name, kind), table.column(index).cast(kind))
    return table
