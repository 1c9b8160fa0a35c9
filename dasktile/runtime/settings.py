"""Constants of the plugins of the scheduler and of the workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from dasktile.schedule.families import FamilyLimits
from dasktile.schedule.joining import MOST_COMBINED, MOST_JOINED


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Constants of the plugins of the scheduler and of the workers.

    Every object of the runtime takes an instance when it is constructed, and uses the defaults
    if there is none.  Except where a source is named, values are choices, not measurements.

    Parameters
    ----------
    max_failures
        Failures after which the scheduler plugin no longer places tasks.  A plugin that fails for
        every graph must not cost time for every graph.
    check_interval
        Seconds between two checks of the scheduler plugin for changes that no event reports:
        a removed plugin, a retirement that was cancelled, root tasks held for too long.
    reassign_delay
        Seconds between the arrival or loss of a worker and the new home workers of pending tasks.
        Workers often join and leave together; their changes are handled at once.
    stall_timeout
        Seconds without any task for its home worker after which a root task is sent to another
        worker, if that is idle.
    steal_gain
        Seconds that a task must end earlier on an idle worker to be stolen, the time included in
        which its inputs and its result are moved.
    steal_horizon
        Seconds for which a thread steals tasks at once.
    steal_from, steal_most
        Late workers from which tasks are stolen at once, and the most tasks of each.
    steal_interval
        Seconds as `check_interval`, after tasks were stolen or might have been.
    families
        Which root tasks of a graph without a plan are sent to the same worker because their results
        are combined.
    plan_window
        Tasks of a plan for each thread that are sent to workers or may be, unless they have ended.
        Of fewer, none may be ready when a task ends; of more, the order differs from the plan's.
    max_combined
        Inputs of a task that is taken to combine results, at the most.
    max_joined
        Tasks that join a result with others, up to which they run where it is.
    max_layers
        Layers that are counted one by one, on the scheduler and on every worker.  Beyond, the
        counts of the older half are added up, so that memory is bounded.
    heartbeat_layers
        Layers in a heartbeat, those with the most bytes: heartbeats must stay small.
    max_readers
        Readers of a result that a hint lists, those that run first.  A result with more readers
        is kept as long as one of them has not run, since to track them all would cost more.
    room_timeout
        Seconds without progress after which a task that waits for memory runs anyway, because the
        tasks that run may wait for it, by locks or otherwise.
    computing_share
        Share of one processor that a worker uses if one of its tasks computes.  An idle worker
        uses about 0.03.
    computing_timeout
        Seconds as `room_timeout` for a worker whose tasks compute, but do not end.  A task may
        compute for long, but may also poll for the one that waits.
    room_tries, room_pause
        Times that an allocation on a device is tried again where nothing can be evicted, and the
        seconds between two of them.
    prefetch_tasks
        Ready tasks whose inputs are prefetched; those of all but the first into free memory only.
        With 8 or 16, simulated workers read more bytes and were no faster.
    reading_threshold
        Seconds above which the wait of a task for its inputs is reported as ``disk-read``; below
        it distributed's own overhead is as large.
    max_kinds
        Kinds of tasks whose last result size is kept, to predict the size of the next result.
    budget_step
        Smallest change of the budget of results, as a share of the target, that is applied.
        Smaller ones would only move tiles back and forth.
    scarce_budget
        Share of the target; if results are evicted while their budget stays below it, the log
        says so.
    monitor_interval
        Seconds between two measurements of the process where distributed does not measure.
    small_bytes
        Bytes below which a value is never spilled: a file would cost more than it frees.
    max_parts
        Parts of a tuple that are spilled one by one at the most; a longer tuple is spilled as a
        whole.
    spare_files
        Bytes of the files of removed results that a worker keeps at the most, to write further
        results over them; never more than it has stored on disk.
    max_losses
        Times that one result is recomputed because it could not be read back from disk; after
        that, the tasks that read it fail.
    """

    max_failures: int = 10
    check_interval: float = 0.5
    reassign_delay: float = 0.1
    stall_timeout: float = 2.0
    steal_gain: float = 0.5
    steal_horizon: float = 1.0
    steal_from: int = 10
    steal_most: int = 100
    steal_interval: float = 0.1
    families: FamilyLimits = field(default_factory=FamilyLimits)
    plan_window: int = 4
    max_combined: int = MOST_COMBINED
    max_joined: int = MOST_JOINED
    max_layers: int = 1000
    heartbeat_layers: int = 32
    max_readers: int = 32
    room_timeout: float = 5.0
    computing_share: float = 0.25
    computing_timeout: float = 600.0
    room_tries: int = 20
    room_pause: float = 0.01
    prefetch_tasks: int = 4
    reading_threshold: float = 0.005
    max_kinds: int = 1000
    budget_step: float = 0.01
    scarce_budget: float = 0.05
    monitor_interval: float = 0.1
    small_bytes: int = 1024
    max_parts: int = 256
    spare_files: int = 1 << 27
    max_losses: int = 3
