"""Where and when tasks run: decisions about tasks and workers, made of names and sizes only."""
