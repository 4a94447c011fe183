"""Measures what a search on public text is worth for private text: how alike both rank settings, and what choosing costs.

    U="uedp-ray sweep sweeps/conll2003.yaml"; export UEDP_DATA=/path/to/corpora
    $U --out runs/proxies
    $U --set search.public={} --set search.selection=composition --set budget.covers=each_trial --out runs/private
    python benchmarks/proxies.py runs/proxies runs/private

The second sweep trains the same points, drawn with the same seed, on the corpus that the proxies stand in for. It is an
experiment on a research corpus: its many private runs are read and compared here, and no epsilon pays for that. Prints
Spearman's rank correlation with each proxy and with their mean, and the regret of each one's best setting: by how much the
private score there is worse than the best of all. docs/conll2003.md has the figures.
"""

from __future__ import annotations

import argparse

import pandas as pd
from scipy import stats

from uedp_ray.analysis.frames import Sweep, finished_trials, load_sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("proxies", help="a sweep of rule public, on several proxies")
    parser.add_argument("private", nargs="+", help="sweeps of the same points on private research corpora")
    arguments = parser.parse_args()
    search = load_sweep(arguments.proxies)
    for path in arguments.private:
        print(f"\n{path}")
        print(compared(search, load_sweep(path)).to_string(float_format=lambda value: f"{value:.3f}"))


def compared(search: Sweep, private: Sweep) -> pd.DataFrame:
    """One row for each proxy, their mean, and a setting that is chosen blindly: columns correlation and regret."""
    metric, keys = search.metric, list(search.space)
    both = finished_trials(search.trials).merge(finished_trials(private.trials), on=keys, suffixes=("", ".private"))
    theirs = both[f"{metric.name}.private"].map(metric.cost)
    worse = both[f"{metric.name}.private"] / both[f"{metric.name}.private"][theirs.idxmin()] - 1.0
    rows = {}
    for name in [*filter(None, search.sweep_config.proxy_names), "mean"]:
        costs = both[metric.name if name == "mean" else metric.on(name)].map(metric.cost)
        rows[name] = {"correlation": stats.spearmanr(costs, theirs).statistic, "regret": worse[costs.idxmin()]}
    rows["the median setting"] = {"correlation": float("nan"), "regret": worse.median()}
    return pd.DataFrame.from_dict(rows, orient="index").assign(settings=len(both))


if __name__ == "__main__":
    main()
