"""The only modules that import private names of Dask and of distributed."""
