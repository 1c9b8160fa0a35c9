"""Dask's own tests that must fail where graphs are rewritten, and why."""

from __future__ import annotations

#: By file and test: the reason, and the modes in which the test fails.
EXCEPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {}
