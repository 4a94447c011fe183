"""What others published beside a comparison: points of their figures, and the price of a run by their arithmetic."""

from __future__ import annotations

import math

import pytest

from tests.search.test_comparison import HEAD, load
from tests.training.runs import run_tree
from uedp_ray.config import RunConfig, from_dict
from uedp_ray.errors import InputError
from uedp_ray.search.published import AsPublished


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n", "expected the columns figure,corpus"),
        (HEAD + "1,c,s,nan,2,user,paper\n", "line 2"),
        (HEAD + "1,c,s,0.1,2,user\n", "line 2"),
        (HEAD + "1,c,s,0.1,2,user,paper,more\n", "line 2"),
        (HEAD + "2,c,s,0.1,2,user,paper\n", "published.figure = '1'"),
        (b"\xff\xfe", "is not CSV"),
    ],
)
def test_published_points_are_read_whole_or_refused(corpora, tmp_path, text, message):
    file = tmp_path / "published.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        load(corpora, tmp_path, published={"csv": str(file), "figure": 1})
    file.write_text(HEAD + "1,c,s,0.1,35.09,user,paper\n2,c,s,1,2,user,paper\n")
    (point,) = load(corpora, tmp_path, published={"csv": str(file), "figure": 1}).published.points
    assert (point.series, point.x, point.y, point.unit, point.source) == ("s", 0.1, 35.09, "user", "paper")
    with pytest.raises(InputError, match=r"published\.against"):
        load(corpora, tmp_path, published={"csv": str(file), "figure": 1, "against": "training.num_rounds"})


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"as_published": {"sensitive_fraction": 1.5}}, r"variants\.a\.as_published\.sensitive_fraction = 1\.5"),
        ({"as_published": {"method": "magic"}}, r"variants\.a\.as_published\.method"),
        ({"as_published": {"max_order": 5000}}, r"variants\.a\.as_published\.max_order"),
        ({"as_published": {"rounds": 5}}, "unknown key"),
        ({"as_published": {}, "method": "noiseless"}, r"variants\.a\.as_published = 'uedp': its runs add no noise"),
        ({"as_published": {}, "set": {"corpus.declared_num_users": None}}, "declared_num_users"),
        ({"as_printed": {}}, "the keys method, set and as_published"),
    ],
)
def test_what_the_published_arithmetic_cannot_price_is_refused_before_any_work(corpora, tmp_path, variant, message):
    with pytest.raises(InputError, match=message):
        load(corpora, tmp_path, variants={"a": {"method": "uedp", **variant}})


def moments(z, prob, rounds, delta, orders):
    """The paper's figure, from the moments of a mixture of two Gaussians at integer orders, term by term."""

    def log_moment(order):
        whole = order + 1
        terms = (
            math.comb(whole, k) * (1 - prob) ** (whole - k) * prob**k * math.exp(k * (k - 1) / (2 * z * z))
            for k in range(whole + 1)
        )
        return math.log(sum(terms))

    return min((rounds * log_moment(order) + math.log(1 / delta)) / order for order in range(1, orders + 1))


@pytest.mark.parametrize(
    ("privacy", "z"),
    [
        ({"noise": "calibrated", "noise_multiplier": 13.0}, 13 / (0.2 * 50 + 1)),
        ({"noise": "calibrated", "noise_multiplier": 13.0, "published_cohort": "all"}, 13 / 51),
        ({"noise": "published", "noise_multiplier": 1.5}, 1.5),
    ],
)
def test_the_published_price_of_a_run_starts_from_the_z_for_which_equation_6_adds_its_noise(corpora, privacy, z):
    settings = {
        "user_sampling_prob": 0.2,
        "entity_sampling_prob": 0.5,
        "delta": 1e-5,
        "target_epsilon": None,
        **privacy,
    }
    tree = run_tree(corpora, privacy=settings, training={"num_rounds": 20})
    tree["corpus"]["declared_num_users"] = 50
    config = from_dict(RunConfig, tree)
    price = AsPublished(sensitive_fraction=0.25, max_order=6).price(config, 13.0)
    assert price["epsilon"] == pytest.approx(moments(z, 0.2 * 0.5 * 0.25, 20, 1e-5, 6), rel=1e-6)
    assert (price["unit"], price["claim"]) == ("user-entity", "as published, not a guarantee")
    users = AsPublished(method="user_dp", sensitive_fraction=0.25, max_order=6).price(config, 13.0)
    assert users["epsilon"] == pytest.approx(moments(z, 0.2, 20, 1e-5, 6), rel=1e-6)
    assert users["unit"] == "user"
