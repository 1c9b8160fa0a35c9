"""Fixtures of distributed's tests, and of the store that they are run on."""

from distributed.utils_test import ws, ws_with_running_task

from tests.distributed_suite.adapter import every_size, keep_clean

__all__ = ["every_size", "keep_clean", "ws", "ws_with_running_task"]
