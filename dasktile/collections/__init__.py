"""Dask collections in and out: the arrays they hold, and the chunks of the results."""
