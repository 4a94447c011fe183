"""What every test of a command needs: one that must succeed, one that must be refused, a run file."""

from __future__ import annotations

import json

import pytest

from tests.cli.files import written
from tests.training.runs import run_tree


@pytest.fixture
def answer(command):
    """Runs a command with ``--json`` that must succeed; returns the document."""

    def run(*arguments):
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(command):
    """Runs a command that must be refused: exit code 2, nothing on stdout, one line that holds every given part."""

    def run(*arguments, parts):
        code, out, err = command(*arguments)
        assert code == 2, (code, err)
        assert out == ""
        last = err.strip().splitlines()[-1]
        assert last.startswith("error: ")
        for part in parts:
            assert part in last
        return last

    return run


@pytest.fixture
def run_file(tmp_path, corpora):
    return written(tmp_path, run_tree(corpora, training={"num_rounds": 2, "device": "cpu"}))
