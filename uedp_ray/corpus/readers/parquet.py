"""Rows of Parquet files: ``_rows`` defines a row."""

from __future__ import annotations

from uedp_ray.corpus._rows import read_parquet
from uedp_ray.corpus.readers.base import of_files

READER = of_files(read_parquet, whole_users=True, suffix=".parquet")
