"""States of tasks: those of both sides, of the scheduler alone, and of workers alone."""

RELEASED, WAITING, MEMORY, FORGOTTEN = "released", "waiting", "memory", "forgotten"
NO_WORKER, QUEUED, PROCESSING, ERRED = "no-worker", "queued", "processing", "erred"
EXECUTING, LONG_RUNNING, ERROR = "executing", "long-running", "error"
FETCH, FLIGHT, MISSING = "fetch", "flight", "missing"
READY, CONSTRAINED = "ready", "constrained"
