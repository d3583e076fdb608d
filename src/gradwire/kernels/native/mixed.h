// Payloads of different formats, summed group by group in one pass.
#pragma once
#include "floats.h"
#include "sign.h"

namespace GW_LEVEL {

// Decodes up to 256 values to, or onto, a sum; returns the bytes they took.
typedef int64_t (*SumGroup)(const uint8_t* codes, float scale, int64_t numel, bool add, float* sum);

template <class Codec>
static int64_t sum_codes(const uint8_t* codes, float scale, int64_t numel, bool add, float* sum) {
  uint8_t wide[Codec::kGroupBytes];
  int64_t bytes = Codec::kGroupBytes;
  if (numel < kGroup) {
    bytes = Codec::tail_bytes(numel);
    memset(wide, 0, sizeof wide);
    Codec::widen_tail(codes, numel, wide);
    codes = wide;
  }
  if (add) Codec::template decode_groups<true>(codes, scale, sum, 1);
  else Codec::template decode_groups<false>(codes, scale, sum, 1);
  return bytes;
}

struct Kind {
  SumGroup sum;
  int64_t group_bytes;
  bool scaled;
};
template <class Codec>
constexpr Kind kind_of() {
  return {sum_codes<Codec>, Codec::kGroupBytes, Codec::kScaled};
}
constexpr Kind kKinds[kFormats] = {
    kind_of<Float32>(),      kind_of<Bfloat16>(),      kind_of<Float16>(),
    kind_of<Float8<3, 7>>(), kind_of<Float8<2, 15>>(), kind_of<Signs>(),
    kind_of<Levels<1>>(),    kind_of<Levels<2>>(),     kind_of<Levels<3>>(),
    kind_of<Levels<4>>(),    kind_of<Levels<5>>(),     kind_of<Levels<6>>(),
    kind_of<Levels<7>>(),    kind_of<Levels<8>>(),
};

// Values of one payload before those of the next: their sums stay in cache.
constexpr int64_t kRun = 8 * kGroup;

// Adds a run of one row, of which `first` values of the stretch came before.
GW_INLINE void sum_run(const MixedJob& job, int64_t row, int64_t first, int64_t numel, float* sum) {
  const Kind& kind = kKinds[job.formats[row]];
  const uint8_t* scales = job.payloads[row] + job.places[2 * row];
  const uint8_t* codes = job.payloads[row] + job.places[2 * row + 1] + first / kGroup * kind.group_bytes;
  for (int64_t i = 0; i < numel; i += kGroup) {
    float scale = 1;
    if (kind.scaled) memcpy(&scale, scales + (first + i) / job.block_sizes[row] * 4, 4);
    const int64_t some = smaller(kGroup, numel - i);
    codes += kind.sum(codes, scale, some, row > 0, sum + i);
  }
}

static void mixed_decode(const MixedJob& job) {
  const Divisor divisor = make_divisor(job.divisor);
  for (int64_t row = 0; row < job.rows; row++) {
    const bool scaled = kKinds[job.formats[row]].scaled;
    job.places[2 * row] = 0;
    job.places[2 * row + 1] =
        scaled ? align_up(4 * total_blocks(job.stretches, job.count, job.block_sizes[row])) : 0;
  }
  float sum[kRun];
  for (int64_t s = 0; s < job.count; s++) {
    const int64_t numel = job.stretches[s].numel;
    float* out = job.out + job.stretches[s].offset;
    for (int64_t first = 0; first < numel; first += kRun) {
      const int64_t run = smaller(kRun, numel - first);
      for (int64_t row = 0; row < job.rows; row++) sum_run(job, row, first, run, sum);
      divide(sum, run, divisor);
      for (int64_t i = 0; i < run; i++) out[first + i] = job.accumulate ? out[first + i] + sum[i] : sum[i];
    }
    for (int64_t row = 0; row < job.rows; row++) {
      if (kKinds[job.formats[row]].scaled) job.places[2 * row] += 4 * div_up(numel, job.block_sizes[row]);
      job.places[2 * row + 1] += format_bytes(job.formats[row], numel);
    }
  }
}

}  // namespace GW_LEVEL
