"""Distributed's own tests of spilling and of a worker's memory, run on dasktile's store.

Adapted from dask/distributed, under its BSD-3-Clause licence; the README here says from where,
what was changed, and why.
"""
