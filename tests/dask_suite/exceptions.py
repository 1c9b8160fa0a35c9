"""Dask's own tests that cannot pass where graphs are rewritten, and why."""

from __future__ import annotations

#: Reasons by file and test, without parameters or with a prefix of them and a star.  A test may be
#: added only if it checks the graph and the value is right.
EXCEPTIONS: dict[str, str] = {
    "test_array_core::test_blockwise_fusion": "asserts the number of tasks",
    "test_array_core::test_from_array_with_lock": (
        "counts how often the array is read: once for each of its own chunks"
    ),
    "test_array_core::test_to_delayed_optimize_graph": "asserts the number of tasks",
    "test_creation::test_creation_data_producers": "asserts the number and kinds of tasks",
    "test_creation::test_from_array_getitem_fused": "looks for a task by its name",
    "test_gufunc::test_apply_gufunc_elemwise_loop": "its function asserts the shapes of blocks",
    "test_gufunc::test_apply_gufunc_output_dtypes": (
        "its function is not what its signature says: it returns all rows whatever it is given"
    ),
    "test_linalg::test_svd_compressed_compute": (
        "compares the second singular vector of a matrix of rank one, which is rounding error"
    ),
    "test_optimization::test_disable_lowlevel_fusion": "compares two optimised graphs",
    "test_optimization::test_dont_fuse_numpy_arrays": "counts the arrays in the graph",
    "test_optimization::test_fuse_getter_with_asarray": "asserts the number of tasks",
    "test_optimization::test_fuse_roots": "asserts the number of tasks",
    "test_overlap::test_overlap_not_blowing_up_graph": "asserts the number of tasks",
    "test_reductions::test_array_cumreduction_axis[blelloch-None-*": (
        "asserts a warning that the product of some chunk overflows; here it does not"
    ),
    "test_xarray::test_xarray_blockwise_fusion_store": "asserts the number of tasks",
}
