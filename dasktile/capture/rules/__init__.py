"""Recognisers, one module for each family of array operations."""
