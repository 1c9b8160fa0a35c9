"""Writing tiled programs as layers of a dask graph."""
