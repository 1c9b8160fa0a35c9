"""Reading dask graphs: from the layers of a collection to a :class:`~dasktile.ir.Program`.

``highlevel`` walks the graph and calls the recognisers in ``rules`` for each layer.  ``base``
has the input and the results of a recogniser.  ``user_kernels`` is the registry of user
functions, ``corrections`` replaces wrong annotations of layers, and ``reasons`` has the reasons
for unchanged operations that no recogniser gives.  ``settings`` has the limits of capture.
"""
