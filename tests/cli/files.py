"""Files that commands read."""

from __future__ import annotations

import yaml


def written(folder, tree, name="run.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path
