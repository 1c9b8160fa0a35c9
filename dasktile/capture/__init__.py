"""Reading dask graphs: from a collection's layers to a :class:`~dasktile.ir.Program`.

``highlevel`` walks the graph and asks recognisers what each layer is: ``sources``,
``blockwise`` (with the table in ``pointwise`` and what users promise in ``registry``),
``contraction``, ``transforms``, ``views`` and ``folds``.  ``base`` says what a recogniser
is given and what it answers; ``corrections`` knows where dask describes arrays wrongly,
``reasons`` gives the reason for operations of which no recogniser gives one.
"""
