// Uniform random numbers: a hash of seed, block and place. See reference.py.
#pragma once
#include "lanes.h"

namespace GW_LEVEL {

constexpr uint32_t kGolden32 = 0x9E3779B9u;

GW_INLINE uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
GW_INLINE uint32_t block_key(uint64_t seed, uint64_t block) {
  return (uint32_t)mix64(seed + block * 0x9E3779B97F4A7C15ull);
}
// All steps of the hash but its last, which changes the lower half only.
GW_INLINE Words upper_hash(Words x) {
  x ^= x >> 16;
  x *= splat_words(0x7feb352du);
  x ^= x >> 15;
  return x * splat_words(0x846ca68bu);
}
GW_INLINE Words hash(Words x) {
  x = upper_hash(x);
  return x ^ (x >> 16);
}
// Counters of rows 0 and 1 of group `group` of a block.
GW_INLINE Words first_counters(uint32_t key, int64_t group) {
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return lane * splat_words(kGolden32) + splat_words(key + (uint32_t)(group * 128) * kGolden32);
}

}  // namespace GW_LEVEL
