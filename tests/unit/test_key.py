import itertools

from gradwire.key import Key, mix, name_hash


def test_streams_of_all_fields_differ():
    keys = itertools.product((0, 1, 2**40), (0, 1, 999), (None, 0, 1, 7), (0, 1))
    streams = [Key(*fields).stream() for fields in keys]
    assert len(set(streams)) == len(streams)
    assert all(0 <= s < 2**63 for s in streams)


def test_fields_do_not_stand_in_for_each_other():
    assert Key(1, 2, 3).stream() != Key(2, 1, 3).stream()
    assert Key(1, 2, 3).stream() != Key(1, 3, 2).stream()


def test_a_stream_is_the_same_in_every_run():
    assert Key(0, 0, 0).stream() == 1195769770526638388
    assert Key(3, 5, 1, 1).stream() == 1265389188636119851
    assert name_hash("layer.weight") == -319072718886086229


def test_mix_takes_any_whole_number_and_stays_within_64_bits():
    values = {mix(v) for v in (0, 1, -1, 2**64 + 1, 2**63)}
    assert all(0 <= v < 2**64 for v in values)
    assert mix(1) == mix(2**64 + 1)


def test_name_hash_is_signed_and_depends_on_every_letter():
    hashes = {name_hash(n) for n in ("", "a", "b", "ab", "ba", "größe", "layer.0.weight")}
    assert len(hashes) == 7
    assert all(-(2**63) <= h < 2**63 for h in hashes)
