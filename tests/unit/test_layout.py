import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.layout import ALIGNMENT, GROUP, align, num_blocks, packed_bytes, shard

NUMELS = st.one_of(st.integers(0, 5000), st.integers(0, 5_000_000_000))


@given(st.integers(0, 10**12))
def test_align_rounds_up_to_the_next_multiple(num_bytes):
    assert 0 <= align(num_bytes) - num_bytes < ALIGNMENT
    assert align(num_bytes) % ALIGNMENT == 0


@given(NUMELS, st.sampled_from([256, 1024]), st.integers(1, 70), st.integers())
def test_shards_cover_a_parameter_once_and_begin_at_blocks(numel, block_size, world_size, turn):
    shards = sorted(
        s for r in range(world_size) if (s := shard(numel, block_size, r, world_size, turn)).numel
    )
    assert sum(s.numel for s in shards) == numel
    ends = [s.start + s.numel for s in shards]
    assert [s.start for s in shards] == [0, *ends][: len(shards)]
    assert all(s.start % block_size == 0 for s in shards)
    if shards:
        blocks = [num_blocks(s.numel, block_size) for s in shards]
        assert max(blocks) - min(blocks) <= 1


def test_turn_decides_who_owns_a_parameter_of_one_block():
    owners = [
        [r for r in range(4) if shard(100, 256, r, 4, turn).numel] for turn in (0, 1, 2, 3, 4)
    ]
    assert sorted(itertools.chain(*owners[:4])) == [0, 1, 2, 3]
    assert owners[0] == owners[4]


@given(NUMELS, st.integers(1, 8))
def test_packed_bytes_hold_all_codes_with_less_than_a_group_to_spare(numel, bits):
    size = packed_bytes(numel, bits)
    assert size * 8 >= numel * bits
    assert size * 8 - numel * bits < 32 * 8 + 8 * bits
    assert size % 32 == 0


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_bytes_of_a_group_have_no_padding(bits):
    assert packed_bytes(GROUP, bits) * 8 == GROUP * bits
    assert packed_bytes(0, bits) == 0


def test_g5_sizes_beyond_32_bits_stay_whole_and_positive():
    for numel in (3_000_000_000, 5_000_000_000):
        assert packed_bytes(numel, 4) == numel // 2
        last = shard(numel, 256, 6, 7)
        assert last.start > 2**31
        assert last.start + last.numel == numel
