"""What runs inside a cluster: plugins of the scheduler and the workers, and their installation.

Nothing else in the package imports distributed.
"""
