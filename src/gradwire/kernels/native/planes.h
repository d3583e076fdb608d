// Levels cut into bit planes, the most significant first. See reference_planes.py.
#pragma once
#include "quantize.h"

namespace GW_LEVEL {

constexpr int kMaxPlanes = 8;
constexpr int kPlaneFraction = 12;

GW_INLINE int64_t plane_bytes(const Stretch* stretches, int64_t count) {
  int64_t bytes = 0;
  for (int64_t s = 0; s < count; s++) bytes += packed_bytes(stretches[s].numel, 1);
  return align_up(bytes);
}

// What magnitudes without their last `cut` bits stand for.
GW_INLINE Floats magnitudes(Ints top, int cut) {
  const Floats middle = splat((float)((1 << cut) - 1) * 0.5f);
  const Floats value = to_floats(top << cut) + middle;
  return top > 0 ? value : splat(0);
}

// Up to 256 values of a block; planes are `stride` bytes apart.
template <Feedback F>
GW_OUTLINE void encode_planes(const EncodeJob& job, const float* x, float* e, int64_t numel, uint8_t* codes,
                              int64_t stride, const Block& b, int64_t group) {
  Padded values;
  Padded::fill(values, x, e, numel, kGroup);
  Words packed[kMaxPlanes] = {};
  const int planes = job.planes, cut = job.bits - planes;
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
  Words counters = first_counters(b.key, group), random = splat_words(0);
  const int64_t rows = div_up(numel, 8);
  for (int64_t r = 0; r < rows; r++) {
    if (r % 2 == 0) {
      random = hash(counters);
      counters += splat_words(8 * kGolden32);
    }
    const Words u = r % 2 ? random >> (32 - kPlaneFraction) : random & splat_words((1u << kPlaneFraction) - 1);
    const Floats v = owed<F>(values.x + 8 * r, values.e + 8 * r);
    const Floats fixed = v * splat(b.lift) * splat(b.inverse) + splat(kRoundingShift);
    const Ints level = ((Ints)fixed - splat_ints(kRoundingBits) + (Ints)u) >> kPlaneFraction;
    const Ints negative = level < 0;
    const Ints top = (negative ? -level : level) >> cut;
    const Words sign = (Words)negative & splat_words(0x80000000u);
    const Words size = (Words)(magnitudes(top, cut) * splat(b.scale));
    keep<F>(values.e + 8 * r, v, (Floats)(size ^ sign), splat(b.gain));
    const Words present = (Words)(lane + splat_ints((int32_t)(8 * r)) < splat_ints((int32_t)numel));
    packed[0] |= ((Words)negative & present & splat_words(1)) << (uint32_t)r;
    for (int p = 1; p < planes; p++)
      packed[p] |= (((Words)top >> (uint32_t)(planes - 1 - p)) & present & splat_words(1)) << (uint32_t)r;
  }
  for (int p = 0; p < planes; p++) store_words(codes + p * stride, packed[p]);
  if (F != Feedback::kNone) memcpy(e, values.e, 4 * numel);
}

template <Feedback F>
static void planes_stretches(const EncodeJob& job) {
  const int64_t scale_bytes = align_up(4 * total_blocks(job.stretches, job.count, job.block_size));
  const int64_t stride = plane_bytes(job.stretches, job.count);
  const float largest = (float)((1 << (job.bits - 1)) - 1);
  uint8_t* scales = job.payload + kAlignment;
  uint8_t* codes = scales + scale_bytes;
  memset(job.payload, 0, kAlignment + scale_bytes + job.planes * stride);
  const int32_t announced = job.planes;
  memcpy(job.payload, &announced, 4);
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    const float* x = job.x + stretch.offset;
    float* e = at<F>(job.residual, stretch.residual_offset);
    const uint64_t seed = mix64(job.stream + (uint64_t)stretch.stream);
    for (int64_t first = 0; first < stretch.numel; first += job.block_size) {
      const int64_t numel = smaller(job.block_size, stretch.numel - first);
      Block b = scale_to(peak_bits<F>(x + first, at<F>(e, first), numel), largest);
      b.inverse *= 1 << kPlaneFraction;
      b.gain = job.gain;
      b.key = block_key(seed, (uint64_t)((stretch.start + first) / job.block_size));
      memcpy(scales, &b.scale, 4);
      scales += 4;
      for (int64_t i = 0; i < numel; i += kGroup, codes += 32)
        if (b.finite)
          encode_planes<F>(job, x + first + i, at<F>(e, first + i), smaller(kGroup, numel - i), codes,
                           stride, b, i / kGroup);
    }
  }
}

static void planes_encode(const EncodeJob& job) {
  if (job.count == 0) return;
  if (!job.residual) return planes_stretches<Feedback::kNone>(job);
  if (job.gain > 0) return planes_stretches<Feedback::kGain>(job);
  return planes_stretches<Feedback::kOwed>(job);
}

// One group of one payload, to or onto a sum of 256.
GW_OUTLINE void sum_planes(const uint8_t* codes, int64_t stride, int planes, int bits, float scale, bool add,
                           float* sum) {
  Words packed[kMaxPlanes];
  for (int p = 0; p < planes; p++) packed[p] = load_words(codes + p * stride);
  for (uint32_t r = 0; r < 32; r++, sum += 8) {
    Words top = splat_words(0);
    for (int p = 1; p < planes; p++) top = top << 1 | (packed[p] >> r & splat_words(1));
    const Words sign = packed[0] << (31 - r) & splat_words(0x80000000u);
    const Floats value = (Floats)((Words)(magnitudes((Ints)top, bits - planes) * splat(scale)) ^ sign);
    store(sum, add ? load(sum) + value : value);
  }
}

// Returns -1, or a number of planes that one of the payloads cannot have.
static int64_t planes_decode(const DecodeJob& job, int planes) {
  if (job.count == 0) return -1;
  const Divisor divisor = make_divisor(job.divisor);
  const int64_t scale_bytes = align_up(4 * total_blocks(job.stretches, job.count, job.block_size));
  const int64_t stride = plane_bytes(job.stretches, job.count);
  for (int64_t row = 0; row < job.rows; row++) {
    int32_t announced;
    memcpy(&announced, job.payloads + row * job.row_bytes, 4);
    if (announced < 2 || announced > planes) return (uint32_t)announced;
  }
  const uint8_t* scales = job.payloads + kAlignment;
  const uint8_t* codes = scales + scale_bytes;
  for (int64_t s = 0; s < job.count; s++) {
    float* out = job.out + job.stretches[s].offset;
    const int64_t numel = job.stretches[s].numel;
    for (int64_t i = 0; i < numel; i += kGroup, codes += 32) {
      float sum[kGroup] = {};
      const int64_t some = smaller(kGroup, numel - i);
      for (int64_t row = 0; row < job.rows; row++) {
        const int64_t offset = row * job.row_bytes;
        float scale;
        int32_t announced;
        memcpy(&announced, job.payloads + offset, 4);
        memcpy(&scale, scales + offset + i / job.block_size * 4, 4);
        if (some < kGroup) {  // words that the last rows do not reach are not there
          uint8_t wide[32 * kMaxPlanes] = {};
          for (int p = 0; p < announced; p++)
            memcpy(wide + 32 * p, codes + offset + p * stride, packed_bytes(some, 1));
          sum_planes(wide, 32, announced, job.bits, scale, row > 0, sum);
        } else {
          sum_planes(codes + offset, stride, announced, job.bits, scale, row > 0, sum);
        }
      }
      divide(sum, some, divisor);
      for (int64_t k = 0; k < some; k++) out[i + k] = job.accumulate ? out[i + k] + sum[k] : sum[k];
    }
    scales += 4 * div_up(numel, job.block_size);
  }
  return -1;
}

}  // namespace GW_LEVEL
