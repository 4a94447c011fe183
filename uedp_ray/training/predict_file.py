"""What a model says of every text in a file: in this process, or on Ray Data.

    size = Path("asked.jsonl").write_text('{"text": "the nurse"}')
    predict_file("runs/mine", "asked.jsonl", "answers.parquet", workers=0)      # {"output": "answers.parquet", "texts": 1}

The file is read twice: all its rows are checked before any is answered, and however long it is, little of it is in memory.
Answers are as private as the texts.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from uedp_ray.corpus.asked import check_suffix, read_texts
from uedp_ray.errors import InputError
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import replacing
from uedp_ray.target import check_length, check_name
from uedp_ray.tasks.base import Answer
from uedp_ray.training.placement import best_device, check_workers, gpus_for
from uedp_ray.training.predict import Predictor, Reading, check_top
from uedp_ray.training.session import ray_session

_AT_ONCE = 256
"""Texts of one batch."""
_TYPES: Mapping[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_ASKED = pa.schema([("text", pa.string())])


def predict_file(
    run: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    top: int = 5,
    workers: int = 1,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Writes what a model says of each ``text`` of a file, in their order (``Predictor.predict``).

    Args:
      run: as ``Predictor``.
      source: JSON Lines (``.jsonl``) or Parquet (``.parquet``); other columns than ``text`` are not read.
      out: the file to write, in either format; written whole or not at all, over one that is there, and owner-only: it is
        as private as the texts.
      workers: Ray Data workers, each on one CPU, and with a GPU if there are enough; 0 answers in this process.
      reporter: gets one line if texts are too long, one if words are unknown, and how far it is.

    Returns: output, texts (how many).
    Raises: InputError, as ``Predictor`` and ``read_texts``; RuntimeError if workers failed permanently.
    """
    source, out = Path(source), Path(out)
    check_top(top)
    check_workers("workers", workers)
    _check_out(out, source)
    predictor = Predictor(Path(run))
    reading = sum(map(predictor.reading, _chunks(source)), Reading())
    if not reading.texts:
        raise InputError("path", str(source), "holds no text")
    reading.tell(reporter)
    tables = (pa.table({"text": texts}, schema=_ASKED) for texts in _chunks(source))
    done = 0
    with replacing(out, private=True) as new, _writing(new, out.suffix, _schema(predictor.answer)) as write:
        for table in _on_ray(predictor, top, tables, workers, reporter) if workers else _here(predictor, top, tables):
            write(table)
            done += len(table)
            reporter.answered(done, reading.texts)
    return {"output": str(out), "texts": done}


def _check_out(out: Path, source: Path) -> None:
    check_suffix("output", check_length(check_name(out, field="output"), field="output"))
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError("output", str(out), "is the file of texts itself: name another")
    if out.is_dir():
        raise InputError("output", str(out), "is a folder: name a file")
    if not out.absolute().parent.is_dir():
        raise InputError("output", str(out), "its folder does not exist: create it, or name another")


class _Worker:
    """Answers tables of texts; on Ray Data, in a process of its own."""

    def __init__(self, predictor: Predictor, top: int):
        self._predictor, self._top = predictor.to(best_device()), top

    def __call__(self, table: pa.Table) -> pa.Table:
        answers = self._predictor.predict(table["text"].to_pylist(), top=self._top)
        return pa.Table.from_pylist(answers, schema=_schema(self._predictor.answer))


def _here(predictor: Predictor, top: int, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    yield from map(_Worker(predictor, top), tables)


def _on_ray(
    predictor: Predictor, top: int, tables: Iterable[pa.Table], workers: int, reporter: Reporter
) -> Iterator[pa.Table]:
    with ray_session(workers):
        import ray
        from ray.data import ActorPoolStrategy, DataContext, from_arrow_refs
        from ray.exceptions import RayError, RayTaskError

        context = DataContext.get_current()
        context.enable_progress_bars = False  # our own progress line is the only one
        context.execution_options.preserve_order = True
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        gpus = gpus_for("auto", workers, reporter, "predicting")
        asked = from_arrow_refs([ray.put(table) for table in tables])
        answered = asked.map_batches(
            _Worker,
            fn_constructor_args=(predictor, top),
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers),
            num_cpus=1,  # of a cluster that others use: all CPUs of a machine might never be free at once
            num_gpus=gpus,
        )
        try:
            yield from answered.iter_batches(batch_size=None, batch_format="pyarrow")
        except RayTaskError as error:
            raise RuntimeError(
                f"a worker failed ({type(error.cause).__name__})"
            ) from None  # its message may show a text
        except RayError as error:  # after Ray's own retries
            died = f"a worker died each time ({type(error).__name__}), perhaps for lack of memory"
            raise RuntimeError(f"{died}: use fewer workers, or none (--workers 0)") from None


def _chunks(source: Path) -> Iterator[list[str]]:
    texts = read_texts(source)
    while chunk := list(itertools.islice(texts, _AT_ONCE)):
        yield chunk


def _schema(answer: Answer) -> pa.Schema:
    fields = pa.struct([(name, _TYPES[kind]) for name, kind in answer.fields.items()])
    return pa.schema([("text", pa.string()), (answer.key, pa.list_(fields))])


def _writing(path: Path, suffix: str, schema: pa.Schema) -> AbstractContextManager[Callable[[pa.Table], None]]:
    return _parquet(path, schema) if suffix == ".parquet" else _jsonl(path)


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_table


@contextmanager
def _jsonl(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda table: file.writelines(f"{json.dumps(row)}\n" for row in table.to_pylist())
