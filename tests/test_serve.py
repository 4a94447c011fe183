"""A model that answers in processes of its own: over HTTP, and on Ray Data. And what is not served."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from types import SimpleNamespace
from urllib.error import HTTPError

import pyarrow.parquet as pq
import pytest

from uedp_ray import export
from uedp_ray.errors import InputError
from uedp_ray.training.predict import predict
from uedp_ray.training.predict_file import predict_file


@pytest.fixture(scope="module")
def app():
    pytest.importorskip("fastapi", reason="extra serve is not installed")
    from uedp_ray.serve import app

    return app


@pytest.fixture
def copied(private_run, tmp_path):
    """A run without its private part, as a copy of it may be."""
    shutil.copytree(private_run.out, tmp_path / "run", ignore=shutil.ignore_patterns("private"))
    return tmp_path / "run"


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_is_not_private_is_served_only_if_asked_for(app, copied):
    assert app({"run": str(copied)})
    edited(copied / "result.json", private=False)
    for arguments in ({}, {"allow_not_private": "false"}):
        with pytest.raises(InputError, match=r"run = .*is NOT PRIVATE.*allow_not_private=true"):
            app({"run": str(copied), **arguments})
    assert app({"run": str(copied), "allow_not_private": "true"})
    (copied / "result.json").unlink()
    with pytest.raises(InputError, match="nothing says that it is"):
        app({"run": str(copied)})


def test_an_export_is_served_if_its_files_give_an_epsilon(app, private_run, tmp_path):
    export(private_run.out, tmp_path / "out")
    assert app({"run": str(tmp_path / "out")})
    edited(tmp_path / "out" / "selection.json", epsilon=1e400)
    with pytest.raises(InputError):
        app({"run": str(tmp_path / "out")})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "run = None: name a run"),
        ({"path": "x"}, "path = 'x': is none of run, allow_not_private"),
        ({"run": "", "allow_not_private": "yes"}, "allow_not_private = 'yes': must be true or false"),
        ({"run": "nowhere"}, "holds no model"),
    ],
)
def test_wrong_arguments_are_refused(app, arguments, told):
    with pytest.raises(InputError, match=told):
        app(arguments)


def test_a_run_without_its_statement_is_not_served(app, copied):
    (copied / "privacy.md").unlink()
    with pytest.raises(InputError, match=r"holds no privacy\.md"):
        app({"run": str(copied)})


def test_nothing_is_served_where_anyone_may_run_programs(app, copied, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InputError, match="RAY_AUTH_MODE"):
        app({"run": str(copied)})


@pytest.fixture(scope="module")
def served(app, private_run, local_ray, tmp_path_factory):
    """A client of a copy that has no ``private/``."""
    from ray import serve

    run = tmp_path_factory.mktemp("served") / "run"
    shutil.copytree(private_run.out, run, ignore=shutil.ignore_patterns("private"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app({"run": str(run)}))

    def ask(path, body=None):
        """(status, answer); ``body``: bytes, or what becomes JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    yield SimpleNamespace(ask=ask, run=run)
    serve.shutdown()


@pytest.mark.slow
def test_texts_are_answered_over_http_as_by_the_command_and_the_statement_is_there(served):
    texts = ["please call the", ""]
    status, answer = served.ask("/predict", {"texts": texts, "top": 3})
    assert (status, json.loads(answer)) == (200, {"predictions": predict(served.run, texts, top=3)})
    assert len(json.loads(served.ask("/predict", {"texts": ["the"]})[1])["predictions"][0]["next"]) == 5
    assert served.ask("/privacy") == (200, (served.run / "privacy.md").read_text())


@pytest.mark.slow
def test_what_is_asked_wrongly_is_answered_with_field_value_and_remedy(served):
    wrong = [
        (b"{", 422, "body"),
        (b"\xff", 400, "body"),
        (["the"], 422, "body"),
        ({}, 422, "texts"),
        ({"texts": "the"}, 422, "texts"),
        ({"texts": ["the"] * 1025}, 422, "texts"),
        ({"texts": ["the", 1]}, 422, "texts.1"),
        ({"texts": ["the"], "top": 0}, 422, "top"),
        ({"texts": ["the"], "tops": 1}, 422, "tops"),
        (b'{"texts": ["\\ud800"]}', 422, "text"),
    ]
    for body, code, field in wrong:
        status, answer = served.ask("/predict", body)
        told = json.loads(answer)
        assert (status, told["field"], set(told)) == (code, field, {"field", "value", "remedy"}), body
    for path, code in (("/predict", 405), ("/private/sampling.key", 404), ("/docs", 404)):
        status, answer = served.ask(path)
        assert (status, json.loads(answer)["value"]) == (code, repr(f"GET {path}"))


@pytest.mark.slow
def test_ray_data_answers_a_file_in_its_order_where_others_use_the_cluster(private_run, local_ray, tmp_path):
    """A worker that asked for every CPU of a machine waited for ever."""
    import ray

    @ray.remote(num_cpus=1)
    class Other:
        def ready(self):
            return True

    other = Other.remote()
    assert ray.get(other.ready.remote())
    texts = [" ".join(["the", "nurse", "called", "them"][: 1 + n % 4]) + f" {n}" for n in range(600)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, workers in (("here", 0), ("ray", 1)):
        predict_file(private_run.out, tmp_path / "asked.jsonl", tmp_path / f"{name}.parquet", top=1, workers=workers)
    here, ray = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("here", "ray"))
    assert [row["text"] for row in ray] == texts
    for one, other in zip(here, ray, strict=True):
        assert one["next"][0]["token"] == other["next"][0]["token"]
        assert one["next"][0]["probability"] == pytest.approx(other["next"][0]["probability"], abs=2e-6)
