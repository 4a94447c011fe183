"""The configuration of a run: frozen dataclasses, validated with remedies, read from and written to YAML.

Every field is a PUBLIC setting: nothing here may be read off the private data. Example:

    config = load_config("run.yaml", ["privacy.target_epsilon=4"])
    dump_config(config, "config.yaml")
"""

from uedp_ray.config.io import from_dict, parse_overrides, read_yaml, set_keys, to_dict
from uedp_ray.config.run import RunConfig, dump_config, load_config
from uedp_ray.config.sections import (
    BoundsConfig,
    CorpusConfig,
    ModelConfig,
    PretrainConfig,
    PrivacyConfig,
    SourceConfig,
    SurplusRule,
    TaskConfig,
    TrainingConfig,
    TransformConfig,
    VocabularyConfig,
)

__all__ = [
    "BoundsConfig",
    "CorpusConfig",
    "ModelConfig",
    "PretrainConfig",
    "PrivacyConfig",
    "RunConfig",
    "SourceConfig",
    "SurplusRule",
    "TaskConfig",
    "TrainingConfig",
    "TransformConfig",
    "VocabularyConfig",
    "dump_config",
    "from_dict",
    "load_config",
    "parse_overrides",
    "read_yaml",
    "set_keys",
    "to_dict",
]
