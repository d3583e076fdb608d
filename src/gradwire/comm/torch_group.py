"""What torch.distributed does not tell of a group: time limit, meeting place."""

from __future__ import annotations

import uuid
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store


def fresh_store(parent: dist.ProcessGroup) -> Store:
    """Return a place where the ranks of a group can meet anew; all of them call it.

    `dist.new_group` would want every rank of the world to take part, and would
    keep the group until the end. Keys carry a fresh name, so that an earlier
    meeting or an earlier run cannot be met there.
    """
    name = [uuid.uuid4().hex if parent.rank() == 0 else None]
    dist.broadcast_object_list(name, group=parent, group_src=0)
    return dist.PrefixStore(f"gradwire/{name[0]}", parent.get_group_store())  # type: ignore[attr-defined]


def limit_s(group: dist.ProcessGroup) -> float:
    """Return after how many seconds a collective of a group has failed."""
    for device in group._device_types:  # noqa: SLF001 - no public way to read it
        options = getattr(group._get_backend(device), "options", None)  # noqa: SLF001
        if options is not None:
            limit: timedelta = options._timeout  # noqa: SLF001
            return limit.total_seconds()
    return dist.default_pg_timeout.total_seconds()
