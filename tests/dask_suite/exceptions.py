"""Dask's own tests that cannot pass where graphs are rewritten, and why."""

from __future__ import annotations

EAGER = ("eager", "random")

#: By file and test, without parameters or with some and a star: the reason, and the modes in
#: which the test fails.
EXCEPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "test_array_core::test_from_array_with_lock": (
        "counts how often the array is read: once for each of its own chunks",
        EAGER,
    ),
    "test_array_core::test_blockwise_fusion": ("asserts the number of tasks", EAGER),
    "test_creation::test_creation_data_producers": ("asserts the number and kinds of tasks", EAGER),
    "test_creation::test_from_array_getitem_fused": ("looks for a task by its name", EAGER),
    "test_linalg::test_svd_compressed_compute": (
        "compares the second singular vector of a matrix of rank one, which is rounding error",
        EAGER,
    ),
    "test_gufunc::test_apply_gufunc_output_dtypes": (
        "its function is not what its signature says: it returns all rows whatever it is given",
        EAGER,
    ),
    "test_optimization::test_dont_fuse_numpy_arrays": ("counts the arrays in the graph", EAGER),
    "test_optimization::test_fuse_getter_with_asarray": ("asserts the number of tasks", EAGER),
    "test_optimization::test_fuse_roots": ("asserts the number of tasks", EAGER),
    "test_reductions::test_array_cumreduction_axis[blelloch-None-*": (
        "asserts a warning that the product of some chunk overflows; here it does not",
        EAGER,
    ),
    "test_xarray::test_xarray_blockwise_fusion_store": ("asserts the number of tasks", EAGER),
}
