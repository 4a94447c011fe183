"""From which epsilon cheap private runs ("pilots") rank settings as runs at the whole budget do.

    UEDP_DATA=/path/to/corpora python benchmarks/pilots.py sweeps/conll2003.yaml --text plays --out /tmp/pilots \
      --set base.model.hidden_size=32 --set base.model.num_layers=1 --set base.vocabulary.max_size=2000 \
      --set base.pretrain.num_steps=300

Trains the sweep's first points once at each epsilon by itself, in this process, and again at the first of several. Prints
for each Spearman's correlation with the scores at the first, and by how much its best setting is worse there than the best
of all. The second round at the first epsilon says what one seed leaves of either. An experiment: no epsilon pays for reading
so many runs, so it is for public and research text (``--text``: one of the sweep's proxies, by name; else its private text).
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pandas as pd
from scipy import stats

from uedp_ray.methods import overlay
from uedp_ray.search.pool import fixed_points
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.sweep_config import laid_over, load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.texts import prepare_corpora


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep")
    parser.add_argument("--text", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0, 2.0, 1.0, 0.5, 0.25])
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    sweep = load_sweep_config(arguments.sweep, arguments.set)
    base = searched_bases(sweep)[arguments.text] if arguments.text else sweep.base
    base = prepare_corpora(base, arguments.out / "corpora")
    started = pretrain(base, arguments.out / "pretrained")["checkpoint"]
    base = dataclasses.replace(base, model=dataclasses.replace(base.model, warm_start=started))
    proxy = {"public_source": bool(arguments.text)}
    points, found = fixed_points(sweep), pd.DataFrame()
    columns = [(f"{each:g}", each) for each in arguments.epsilon]
    if len(columns) > 1:
        columns.append(("again", arguments.epsilon[0]))
    for column, epsilon in columns:
        for number, point in enumerate(points):
            run = overlay(
                laid_over(base, sweep, point), {"privacy.target_epsilon": epsilon, "privacy.noise_multiplier": None}
            )
            result = train(
                run, arguments.out / column / str(number), workers=0, tokens=arguments.out / "tokens", **proxy
            )
            found.loc[number, column] = sweep.metric.cost(result[sweep.metric.name])
        print(f"epsilon {column}: {len(points)} runs", flush=True)
    whole = found[f"{arguments.epsilon[0]:g}"]
    rows = {
        column: {
            "correlation": stats.spearmanr(scores, whole).statistic,
            "regret": whole[scores.idxmin()] / whole.min() - 1,
        }
        for column, scores in found.items()
    }
    rows["the median setting"] = {"correlation": float("nan"), "regret": whole.median() / whole.min() - 1}
    print(pd.DataFrame.from_dict(rows, orient="index").to_string(float_format=lambda value: f"{value:.3f}"))
    print(found.sort_values(found.columns[0]).to_string(float_format=lambda value: f"{value:.1f}"))


if __name__ == "__main__":
    main()
