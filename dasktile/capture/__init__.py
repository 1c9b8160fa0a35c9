"""Reading dask graphs: from a collection's layers to a :class:`~dasktile.ir.Program`."""
