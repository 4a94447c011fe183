"""The configuration of a run: frozen dataclasses, validated with remedies, read from and written to YAML.

Every field is a PUBLIC setting: nothing here may be read off the private data. Example:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import dump_config, load_config
    >>> folder = TemporaryDirectory()
    >>> file, written = Path(folder.name, "run.yaml"), Path(folder.name, "config.yaml")
    >>> size = file.write_text("{corpus: {declared_num_users: 1000}, privacy: {target_epsilon: 8}}")
    >>> config = load_config(file, ["privacy.target_epsilon=4"])
    >>> config.privacy.target_epsilon, config.privacy.delta    # overridden; a default
    (4.0, 1e-05)
    >>> dump_config(config, written)    # every setting
    >>> load_config(written) == config
    True
    >>> load_config(file, ["privacy.delta=2"])
    Traceback (most recent call last):
        ...
    uedp_ray.errors.InputError: privacy.delta = 2.0: must lie strictly between 0 and 1
    >>> folder.cleanup()
"""

from uedp_ray.config.choices import Regrouping, SurplusRule
from uedp_ray.config.io import from_dict, parse_overrides, read_yaml, set_keys, to_dict
from uedp_ray.config.run import RunConfig, as_yaml, check_rounds, dump_config, load_config
from uedp_ray.config.sections import (
    BoundsConfig,
    ModelConfig,
    PrivacyConfig,
    RepresentationConfig,
    TaskConfig,
    TrainingConfig,
)
from uedp_ray.config.texts import CorpusConfig, PretrainConfig, SourceConfig, TransformConfig, VocabularyConfig

__all__ = [
    "BoundsConfig",
    "CorpusConfig",
    "ModelConfig",
    "PretrainConfig",
    "PrivacyConfig",
    "Regrouping",
    "RepresentationConfig",
    "RunConfig",
    "SourceConfig",
    "SurplusRule",
    "TaskConfig",
    "TrainingConfig",
    "TransformConfig",
    "VocabularyConfig",
    "as_yaml",
    "check_rounds",
    "dump_config",
    "from_dict",
    "load_config",
    "parse_overrides",
    "read_yaml",
    "set_keys",
    "to_dict",
]
