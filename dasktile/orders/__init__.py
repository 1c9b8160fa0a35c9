"""Orders of tasks: planned for a limited memory, and carried into a graph."""
