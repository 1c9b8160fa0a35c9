"""Tools to test programs that use dasktile on machines without a GPU.

:mod:`dasktile.testing.emulated` is a device in host memory, with a capacity and a bandwidth.
Workers use it with ``dasktile.enable(client, device="emulated")``.
"""
