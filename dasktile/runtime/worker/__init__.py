"""The worker plugin: the store of results, spilling and prefetching."""
