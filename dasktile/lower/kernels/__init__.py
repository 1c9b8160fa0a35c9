"""How the tasks of each family of operations are written, one module a family."""
