"""Benchmarks of planning for asv; they import nothing but the package, so that old commits run."""
