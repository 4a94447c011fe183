"""The application that commands register with, and what they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

import uedp_ray
from uedp_ray.errors import InputError

app = typer.Typer(
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Language models with user-entity differential privacy: train, account, sweep.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"uedp-ray {uedp_ray.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


@contextmanager
def as_flags(**names: str) -> Iterator[None]:
    """Renames the field of errors in the block to its flag: ``max_users`` becomes ``--max-users``, or as ``names`` says."""
    try:
        yield
    except InputError as error:
        flag = f"--{error.field.replace('_', '-')}" if error.field.isidentifier() else error.field
        raise InputError(names.get(error.field, flag), error.value, error.remedy) from error.__cause__
