"""Channels: two reductions under way never share a tag."""

import torch

from gradwire.comm.base import complete
from gradwire.comm.local import run_ranks
from gradwire.engine.channels import AGREEMENT, Channels


class Spying:
    """Notes the tags that pass through a mailbox."""

    def __init__(self, mailbox):
        self.rank, self.world_size = mailbox.rank, mailbox.world_size
        self.tags = []
        self._mailbox = mailbox

    def exchange(self, tag, sends, receives):
        self.tags.append(tag)
        return self._mailbox.exchange(tag, sends, receives)


def tags_used(mailbox, steps):
    spy = Spying(mailbox)
    channels = Channels(spy)
    for step in steps:
        channels.begin(step)
        for _ in range(3):
            complete(channels.next().all_reduce(torch.ones(4)))
    complete(channels.agreement().all_reduce(torch.ones(4)))
    return spy.tags


def test_reductions_of_neighbouring_steps_share_no_tag_and_ranks_agree():
    first, second = run_ranks(2, lambda mailbox: tags_used(mailbox, range(126, 131)))
    assert first == second
    assert len(set(first)) == len(first) == 2 * (5 * 3 + 1)
    assert max(first) < 2**31


def test_a_mailbox_that_counts_serves_one_channel_only():
    def body(mailbox):
        plain, counting = Spying(mailbox), Spying(mailbox)
        channels = Channels(plain)
        complete(channels.next(counting).all_reduce(torch.ones(4)))
        complete(channels.next().all_reduce(torch.ones(4)))
        return len(plain.tags), len(counting.tags)

    assert run_ranks(2, body) == [(2, 2), (2, 2)]


def test_step_counts_are_compared_beyond_the_channels_of_all_steps():
    assert max(run_ranks(2, lambda mailbox: tags_used(mailbox, [127]))[0]) // 8 == AGREEMENT
