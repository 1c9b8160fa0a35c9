"""Writers of the tasks of each family of operations, one module for each."""
