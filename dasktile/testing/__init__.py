"""Tools for tests of programs that use dasktile, on machines without a GPU.

:mod:`dasktile.testing.emulated` is a device in the host's memory with a limit and a bandwidth.
Workers use it with ``dasktile.enable(client, device="emulated")``.
"""
