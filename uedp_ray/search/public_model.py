"""What the public model scores before anything is trained: on each text of the search, and on the answer's held-out text.

``public_scores`` tells them before the first trial, and keeps them in ``private/public-model.json``. Whoever reads them
can stop before hours of search: training under a budget adds to the public model, and seldom much. No figure here depends
on the private text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from uedp_ray.config import RunConfig
from uedp_ray.fields import record
from uedp_ray.reporting import Reporter
from uedp_ray.search.layout import SweepDir, corpora_at
from uedp_ray.search.proxies import named
from uedp_ray.search.remote import Beside
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.search.sync import prepared
from uedp_ray.search.trial import pretrained, trial_base
from uedp_ray.storage.files import read_json, write_json
from uedp_ray.tasks.metric import Metric
from uedp_ray.training.evaluate import public_row
from uedp_ray.training.faults import blamed
from uedp_ray.training.paths import for_use
from uedp_ray.training.run_vocabulary import make_vocabulary

_HELD_OUT = "corpus.evaluation"


@dataclass(frozen=True)
class PublicScores:
    """Rows as ``compare`` has them, by proxy; none at all without a public model."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None
    """On the text that the answer is scored on, where trials are scored on other text."""

    def told(self, metric: Metric) -> list[str]:
        """A line for each text, and what is to be said of the one that counts."""
        by_text = {named(proxy): row for proxy, row in self.rows.items()}
        by_text = {_HELD_OUT: self.rows[""]} if self.held_out is None else by_text | {_HELD_OUT: self.held_out}
        lines = [f"the public model on {text}: {metric.told(row)}" for text, row in by_text.items()]
        return lines + [f"caution: {each}" for each in metric.cautions(by_text.get(_HELD_OUT, {}))]


def public_scores(config: SweepConfig, folder: SweepDir, beside: Beside, reporter: Reporter) -> PublicScores:
    """Scores the public model, or reads what an earlier start found; the sweep's texts are prepared."""
    folder.storage.get(folder.public_scores)
    if folder.public_scores.exists():
        return _read(config, folder)
    sweeps = {proxy: trial_base(config, folder, proxy) for proxy in config.proxy_names}
    if not all(sweep.starts_public for sweep in sweeps.values()):
        return PublicScores()
    reporter.say("scoring the public model")
    rows = {proxy: beside.run(_scored_row, sweep.base, folder) for proxy, sweep in sweeps.items()}
    held_out = None
    if config.search.rule == "public":
        held_out = beside.run(_scored_row, prepared(config.base, folder, folder.private / "winner"), folder)
    found = PublicScores(rows, held_out)
    write_json(folder.public_scores, asdict(found), private=True)
    folder.storage.put(folder.public_scores)
    for line in found.told(config.metric):
        reporter.say(line)
    return found


def _read(config: SweepConfig, folder: SweepDir) -> PublicScores:
    of_text = config.metric.checks(nothing=False) | {"epsilon": record({})}
    checks = {
        "rows": record(dict.fromkeys(config.proxy_names, record(of_text))),
        "held_out": record(of_text, nothing=True),
    }
    return PublicScores(**read_json(folder.public_scores, checks, "delete it: the public model will be scored again"))


def _scored_row(config: RunConfig, folder: SweepDir, reporter: Reporter) -> dict[str, Any]:
    """Returns the row of the public model, on any node."""
    folder.storage.get(*corpora_at(folder.private / "winner"))
    config = pretrained(config, folder, reporter)
    with blamed("training.batch_tokens", config.training.batch_tokens):
        return public_row("public-only", config, make_vocabulary(for_use(config)))
