"""The scheduler plugin: placement, root tasks, priorities, dashboard."""
