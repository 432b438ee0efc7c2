"""The vocabulary of a training job: one job on this node, and who computes in it.

In: nothing. Out: Job, which agent.training keeps, and which records and rules carry.
"""

import msgspec

from agent.events import ProcessKey


class Job(msgspec.Struct, gc=False):
    """One training job as far as it runs on this node.

    `launcher` is who it is known by: the process that starts its ranks here. `run_id`,
    `scheduler_job` and `world_size` are what its ranks were told by environment, b""
    and 0 when nobody was; `scheduler_job` is the cgroup's word where that has it.
    `ranks` has the living ranks of this node and their numbers, -1 for an unknown one.
    `ended` says that the launcher has ended, while ranks live on.
    """

    launcher: ProcessKey
    run_id: bytes = b""
    scheduler_job: bytes = b""
    world_size: int = 0
    ranks: dict[ProcessKey, int] = {}
    ended: bool = False
