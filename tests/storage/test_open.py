"""What is at a URL: what others may see of it, what is refused, which file systems will do."""

from __future__ import annotations

import json
import pwd
import shutil
import stat
from pathlib import Path
from unittest import mock

import pytest

from tests.storage.urls import charged
from tests.training.runs import crash, run_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.search.export import export
from uedp_ray.storage import objects
from uedp_ray.storage.objects import Objects
from uedp_ray.storage.open import folder_only, local_copy, open_storage
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train

pytestmark = pytest.mark.usefixtures("node")


def test_a_part_cut_short_was_never_released_and_a_missing_one_is_refused(corpora, url, tmp_path):
    crash(run_config(corpora), url, charges=4)
    parts = sorted((tmp_path / "bucket/run/private").glob("000001-*/ledger.jsonl/*"))
    parts[-1].write_bytes(parts[-1].read_bytes()[:-9])
    assert charged(url) == [(0, 0), (1, 0), (2, 0)]
    parts[-2].unlink()
    parts[-1].write_bytes(b"x" * (int(parts[-1].name[13:]) - int(parts[-1].name[:12])))
    with pytest.raises(InputError, match="what comes before it is missing"):
        charged(url)


def test_what_is_private_is_under_private_alone_and_its_owners(corpora, url, tmp_path):
    train(run_config(corpora), url, workers=0)
    bucket = tmp_path / "bucket/run"
    assert stat.S_IMODE((bucket / "private").stat().st_mode) == 0o700
    root = open_storage(url).root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    key = (root / "private/sampling.key").read_text()
    text = next(iter((root / "private/corpus/shards").iterdir())).read_bytes()
    public = {path: path.read_bytes() for path in bucket.rglob("*") if path.is_file() and "private" not in path.parts}
    assert len(public) > 8
    assert not any(key.encode() in content or content == text for content in public.values())


def test_a_finished_run_is_not_run_again_and_another_config_is_refused(corpora, url, node):
    result = train(run_config(corpora), url, workers=0)
    assert result["run_dir"] == url
    before = charged(url)
    node("b")
    assert train(run_config(corpora), url, workers=0, resume=True) == result
    with pytest.raises(InputError, match="holds a run already: add --resume"):
        train(run_config(corpora), url, workers=0)
    with pytest.raises(InputError, match=r"its config .* is not this one"):
        train(run_config(corpora, training={"num_rounds": 9}), url, workers=0, resume=True)
    with pytest.raises(InputError, match="no run to resume"):
        train(run_config(corpora), f"{url}-2", workers=0, resume=True)
    assert charged(url) == before


def test_a_result_that_others_charged_after_is_outdated(corpora, url, tmp_path, monkeypatch):
    config = run_config(corpora)
    train(config, url, workers=0)
    late = next((tmp_path / "bucket/run/private").glob("000001-*/result.json"))
    content = late.read_bytes()
    late.unlink()
    (tmp_path / "bucket/run/result.json").unlink()
    shutil.rmtree(next((tmp_path / "bucket/run/private").glob("000001-*/checkpoint")))
    shutil.rmtree(tmp_path / "bucket/run/model")  # else it is taken for what was paid for
    with monkeypatch.context() as older:  # a version that charged beyond the plan
        older.setattr(RunDriver, "_affordable", lambda driver: 5)
        crash(config, url, charges=2, resume=True)
    late.write_bytes(content)  # the first start was halted, and writes its result only now
    train(config, url, workers=0, resume=True)
    result = json.loads((local_copy(url) / "result.json").read_text())
    assert len(charged(url)) == 5 + 2
    everything = read_ledger(local_copy(url) / "ledger.jsonl")
    assert result["epsilon"]["user-entity"] == pytest.approx(epsilon_of_events(everything, delta=1e-4), rel=1e-12)


def test_where_a_folder_is_needed_a_url_is_refused(tmp_path):
    assert folder_only(tmp_path) == tmp_path
    with pytest.raises(InputError, match="only train and sweep"):
        folder_only(Path("s3://bucket/x"))


@pytest.mark.parametrize(
    "out", ["s3://", "s3:///", "s3:///run", "s3://bucket", "gs:bucket/x", "http:x", "file://", "s3://k:secret@"]
)
def test_a_part_of_a_url_is_no_folder(corpora, tmp_path, monkeypatch, out):
    """A variable that is not set leaves one, and the run went into a folder ``s3:`` of the node's."""
    monkeypatch.chdir(tmp_path)
    for path in (out, Path(out)):
        with pytest.raises(InputError, match="is not a complete URL: write SCHEME") as raised:
            train(run_config(corpora), path, workers=0)
        assert "secret" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    assert open_storage(tmp_path / "run:1").root == tmp_path / "run:1", "a folder may have a colon in its name"


@pytest.mark.parametrize("out", ["s3://bucket/a/../b", "file:///tmp/./x", "s3://bucket/..?region=x"])
def test_a_url_with_a_step_is_refused(out):
    """To a store of objects ``a/../b`` is a name of its own; this node's copy of it would be that of ``a/b``."""
    with pytest.raises(InputError, match=r"has a \. or \.\. step"):
        open_storage(out)


@pytest.mark.parametrize("out", ["s3://bucket/run#1", "file:///tmp/a#b/run"])
def test_a_url_with_a_fragment_is_refused(out):
    """It was left out without a word: ``run#1`` and ``run#2`` were one run."""
    with pytest.raises(InputError, match="has a # in it"):
        open_storage(out)


def test_a_user_without_a_home_is_told_what_to_name(monkeypatch, tmp_path):
    """As a pod's may be."""
    monkeypatch.delenv("UEDP_RAY_WORK", raising=False)
    monkeypatch.delenv("HOME")
    with (
        mock.patch.object(pwd, "getpwuid", side_effect=KeyError),
        pytest.raises(InputError, match=r"^UEDP_RAY_WORK .*no home folder: name a folder"),
    ):
        open_storage(f"file://{tmp_path}/run")


def test_what_is_there_already_is_named_by_its_url(corpora, url, node):
    config = run_config(corpora, training={"num_rounds": 1})
    train(config, url, workers=0)
    with pytest.raises(InputError, match=f"^--out = '{url}': holds a run already"):
        train(config, url, workers=0)


def test_what_cannot_be_opened_is_named_as_it_was_given(tmp_path):
    with pytest.raises(InputError) as raised:
        export("s3:", tmp_path / "out")
    assert raised.value.field == "path"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://key:secret@bucket/run", r"'s3://…': a URL must not hold a password"),
        ("nosuch://bucket/run", "cannot be opened"),
        ("s3://bucket/run?nosuch=1", "Unexpected query parameter"),
    ],
)
def test_urls_that_cannot_be_opened(corpora, out, message):
    with pytest.raises(InputError, match=message) as raised:
        train(run_config(corpora), out, workers=0)
    assert "secret" not in str(raised.value)


def test_a_storage_that_cannot_be_reached_is_told_before_anything_is_done(corpora, url, monkeypatch):
    monkeypatch.setattr(objects, "_WAITS", ())
    monkeypatch.setattr(Objects, "list", lambda self, folder="": self._tried("list", folder, lambda: [][0]))
    with pytest.raises(InputError, match=r"cannot be used .*check the name, the permissions and the credentials"):
        train(run_config(corpora), url, workers=0)


def test_a_node_that_can_keep_no_copies_says_so(url, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("UEDP_RAY_WORK", str(tmp_path / "file" / "work"))
    with pytest.raises(InputError, match=r"UEDP_RAY_WORK = .*cannot be created \(Not a directory\)"):
        open_storage(url)


def test_places_that_hold_something_else_are_left_alone(corpora, url, tmp_path):
    (tmp_path / "bucket/run").mkdir(parents=True)
    (tmp_path / "bucket/run/thesis.tex").write_text("ten years of work")
    with pytest.raises(InputError, match="not empty and holds no run"):
        train(run_config(corpora), url, workers=0)
    assert [path.name for path in (tmp_path / "bucket/run").iterdir()] == ["thesis.tex"]


def test_a_copy_of_what_is_at_a_url_is_not_gone_on_with(corpora, url, tmp_path):
    crash(run_config(corpora), url, charges=4)
    shutil.copytree(tmp_path / "bucket/run", tmp_path / "copy")
    with pytest.raises(InputError, match="name the URL"):
        train(run_config(corpora), tmp_path / "copy", workers=0, resume=True)
    shutil.rmtree(tmp_path / "copy" / "private")
    with pytest.raises(InputError, match="no run to resume"):
        train(run_config(corpora), tmp_path / "copy", workers=0, resume=True)


def test_any_fsspec_file_system_will_do(corpora, node):
    url = "memory://any/run"
    crash(run_config(corpora), url, charges=4)
    node("b")
    assert train(run_config(corpora), Path(url), workers=0, resume=True)["rounds"] == 3
    assert charged(url) == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1)]
