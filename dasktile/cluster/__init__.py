"""The cluster a plan is made for: its workers and threads, their speed, where data lies."""
