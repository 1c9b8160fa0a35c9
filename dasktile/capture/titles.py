"""Operations by the call that the user made, not by the steps in which Dask carries it out."""

from __future__ import annotations

from collections.abc import Mapping

from dask.utils import key_split

#: Endings by which Dask names the layers of one call.
_STEPS = (
    *("-partial", "-aggregate", "-merge", "-split", "-blockwise", "-along-axis"),
    # of flox
    *("-preprocess", "-chunk", "-simple-reduce", "-reduce-map-reduce", "-reduce-cohorts"),
)  # fmt: skip

#: The call, by the name of a function or a layer that Dask has for a step of it.
_CALLS: Mapping[str, str] = {
    **dict.fromkeys(("arg-reduce", "arg_chunk", "arg_combine"), "argmin or argmax"),
    **dict.fromkeys(("arg_agg", "nanarg_agg"), "argmin or argmax"),
    **dict.fromkeys(("argtopk_preprocess", "argtopk_aggregate"), "argtopk"),
    **dict.fromkeys(("mean_chunk", "mean_combine", "mean_agg"), "mean"),
    **dict.fromkeys(("moment_chunk", "moment_combine", "moment_agg"), "var"),
    **dict.fromkeys(("getitem_variadic", "slice_with_int_dask_array"), "getitem"),
    "bincount_agg": "bincount",
    **dict.fromkeys(("chunk_sum", "sum_wo_cat"), "matmul"),
    "cholesky-upper": "cholesky",
    "chunk_einsum": "einsum",
    "chunk_max": "max",
    "chunk_min": "min",
    "custom_nanquantile": "nanquantile",
    "gradient_kernel": "gradient",
    "histogram-sum": "histogram",
    "histogramdd-sum": "histogramdd",
    "int_piecewise": "piecewise",
    "isin_kernel": "isin",
    **dict.fromkeys(("lstsq-rank", "lstsq-singular"), "lstsq"),
    **dict.fromkeys(("lu-l", "lu-p", "lu-u"), "lu"),
    "nanmax_skip": "nanmax",
    "nanmin_skip": "nanmin",
    "nanpolyfit_1d": "polyfit",
    "numpy_vindex": "vindex",
    "percentile_tdigest": "percentile",
    "searchsorted_block": "searchsorted",
    # the step of qr for rows in one chunk
    "sfqr": "qr",
    "slice_with_int_dask_array_aggregate": "getitem",
    "solve-triangular": "solve_triangular",
    **dict.fromkeys(("solve_triangular_lower", "solve_triangular_safe"), "solve_triangular"),
    "topk_aggregate": "topk",
    "unique_internal": "unique",
}


def call_of(step: str) -> str:
    """The call that a function or a layer, without its token, is a step of."""
    name = step.lstrip("_")
    name = next((name.removesuffix(end) for end in _STEPS if name.endswith(end)), name)
    return _CALLS.get(name, name)


def call_of_layer(name: str) -> str:
    """As :func:`call_of`, for the name of a layer."""
    return call_of(key_split(name))
