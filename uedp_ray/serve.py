"""A trained model over HTTP, by Ray Serve (extra ``serve``): ``serve run uedp_ray.serve:app run=runs/notes``.

``POST /predict`` answers ``{"texts": ["…"], "top": 5}`` as ``uedp-ray predict --json`` does; ``GET /privacy`` returns the
statement, ``privacy.md``. Bad input is answered with 422 and ``{"field": …, "value": …, "remedy": …}``.

Of a run, or of an export, only ``model/``, ``privacy.md``, and what says which task and whether it is private are opened:
never ``private/``. A run without a guarantee is refused, unless ``allow_not_private=true``. Ray Serve listens on this
machine alone, unless told otherwise, and answers whoever reaches its port. Texts and answers are neither kept nor logged.
"""
# Without `from __future__ import annotations`: FastAPI reads the types of what Ray Serve has rewritten.

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import ray
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from starlette.exceptions import HTTPException

from uedp_ray.access import require_closed, require_token
from uedp_ray.answers import export_epsilon
from uedp_ray.errors import InputError, shown
from uedp_ray.storage.files import check_regular, unusable
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.placement import best_device
from uedp_ray.training.predict import Predictor
from uedp_ray.training.rundir import RunDir

MOST_TEXTS = 1024
"""Texts of one request: more would keep others waiting."""
_MOST_BYTES = 1 << 24
_ARGUMENTS = ("run", "allow_not_private")
_FLAG = {"true": True, "false": False}

api = FastAPI(title="uedp-ray", docs_url=None, redoc_url=None)  # those pages load scripts from elsewhere


class Question(BaseModel):
    """The body of ``POST /predict``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    texts: Annotated[list[str], Field(max_length=MOST_TEXTS)]
    top: Annotated[int, Field(ge=1)] = 5


@api.exception_handler(InputError)
def refused(request: Request, error: InputError) -> JSONResponse:
    return _refusal(error.field, error.value, error.remedy)


@api.exception_handler(RequestValidationError)
def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"][1:]))
    if first["type"] == "json_invalid" or not field:
        return _refusal("body", None, 'send {"texts": ["…"]} as application/json')
    return _refusal(field, first.get("input"), first["msg"])


@api.exception_handler(HTTPException)
def elsewhere(request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code not in (404, 405):
        return _refusal("body", None, error.detail, status=error.status_code)
    asked = f"{request.method} {request.url.path}"
    return _refusal("path", asked, "ask for POST /predict or GET /privacy", status=error.status_code)


def _refusal(field: str, value: object, remedy: str, *, status: int = 422) -> JSONResponse:
    said: Mapping[str, str] = {"field": field, "value": shown(value), "remedy": remedy}
    return JSONResponse(said, status_code=status)


@serve.ingress(api)
class Served:
    """One replica: a model, and its statement."""

    def __init__(self, run: str, statement: str):
        require_closed(ray.get_runtime_context().gcs_address)
        self._predictor, self._statement = Predictor(Path(run)).to(best_device()), statement

    @api.post("/predict")
    def predict(self, question: Question) -> dict[str, Any]:
        return {"predictions": self._predictor.predict(question.texts, top=question.top)}

    @api.get("/privacy", response_class=PlainTextResponse)
    def privacy(self) -> str:
        return self._statement


def app(arguments: dict[str, str]) -> serve.Application:
    """The application that ``serve run`` starts.

    Args:
      arguments: ``run``, a run directory or an export; ``allow_not_private``, true or false (default).

    Raises: InputError for any other argument, and a run that is not to be served.
    """
    if unknown := sorted(arguments.keys() - set(_ARGUMENTS)):
        raise InputError(unknown[0], arguments[unknown[0]], f"is none of {', '.join(_ARGUMENTS)}")
    if "run" not in arguments:
        raise InputError("run", None, "name a run directory or an export: run=runs/notes")
    allowed = _FLAG.get(asked := arguments.get("allow_not_private", "false"))
    if allowed is None:
        raise InputError("allow_not_private", asked, "must be true or false")
    require_token(os.environ.get("RAY_ADDRESS"))
    run = Path(arguments["run"]).resolve()
    Predictor(run)  # what is wrong with a model is said here, and once
    if not (allowed or has_guarantee(run)):
        remedy = "is NOT PRIVATE, or nothing says that it is: to serve it all the same, add allow_not_private=true"
        raise InputError("run", str(run), remedy)
    return serve.deployment(Served).bind(str(run), _statement(run))


def has_guarantee(run: Path) -> bool:
    """Whether a run's ``result.json`` says that it is private, or the files of an export give an epsilon."""
    found = RunDir(run)
    if found.result.exists():
        private: bool = found.load_result(metric_of(found.load_config()))["private"]
        return private
    return (run / "selection.json").exists() and math.isfinite(export_epsilon(run)["epsilon"])


def _statement(run: Path) -> str:
    path = RunDir(run).statement
    try:
        check_regular(path, "restore the run's copy", most=_MOST_BYTES)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unusable(error, "run", run, f"holds no {path.name}: name a finished run, or an export") from None
