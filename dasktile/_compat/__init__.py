"""What dasktile uses of Dask and distributed beyond their documented interfaces."""
