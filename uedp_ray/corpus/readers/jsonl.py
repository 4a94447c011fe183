"""Rows as JSON objects, one per line: ``_rows`` defines a row."""

from __future__ import annotations

from uedp_ray.corpus._rows import read_jsonl
from uedp_ray.corpus.readers.base import of_files

READER = of_files(read_jsonl, whole_users=True, suffix=".jsonl")
