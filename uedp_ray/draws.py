"""Generators that follow from a secret key and a name: the same whenever they are asked for, and of one purpose alone.

    >>> from uedp_ray.draws import generator_of, secret_for
    >>> secret = secret_for(b"the key of a run", b"transform")
    >>> one, again, other = (generator_of(secret, name).random() for name in (b"sentence 7", b"sentence 7", b"sentence 8"))
    >>> one == again, one == other, secret == secret_for(b"the key of a run", b"representation")
    (True, False, False)

A name says whose draws they are, and nothing that a text says.
"""

from __future__ import annotations

import hashlib

import numpy as np


def secret_for(key: bytes, purpose: bytes) -> bytes:
    """32 bytes of a run's key, for one purpose (at most 16 bytes), so that no two purposes share a draw."""
    return hashlib.blake2b(key, person=purpose, digest_size=32).digest()


def generator_of(secret: bytes, name: bytes, kind: bytes = b"") -> np.random.Generator:
    """At its beginning, for a name among those of a ``kind`` (at most 16 bytes)."""
    seed = hashlib.blake2b(name, key=secret, person=kind, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))
