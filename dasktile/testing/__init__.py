"""Devices for tests on machines that have none."""
