"""What long work tells whoever asked for it; by default nobody listens."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Called with one line for people. No private text is in it; figures read off private text say so."""
