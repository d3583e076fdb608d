// How every block codec runs over stretches, blocks and groups.
//
// A codec is a struct with static members:
//   kScaled, kGroupBytes           whether blocks have a scale; bytes of 256 codes
//   measure<F>(x, e, numel, place)  the block's scale, or not finite
//   encode_groups<F>(x, e, codes, block, groups)        whole groups of a plain block
//   encode_part<F>(x, e, numel, codes, block, group)    up to 256 values of any block
//   tail_bytes(numel), widen_tail(from, numel, codes)   a stretch's last group
//   decode_groups<kAdd>(codes, scale, out, groups)
//   void_block(codes, bytes)        what a block that is not finite sends
#pragma once
#include "job.h"
#include "lanes.h"
#include "noise.h"

namespace GW_LEVEL {

enum class Feedback { kNone, kOwed, kGain };

// What a block may need to know besides its values.
struct Place {
  const EncodeJob& job;
  uint64_t seed;   // of the stretch
  uint64_t index;  // of the block in its parameter
};

struct Block {
  float scale;    // on the wire
  float inverse;  // of the scale, for values times `lift`
  float lift;     // a power of two that keeps `inverse` in range
  bool finite;
  bool plain;  // lift is 1: `encode_groups` may be used
  bool nearest;
  uint32_t key;
  float gain;
};

// A place in the residual, where there is one.
template <Feedback F>
GW_INLINE float* at(float* e, int64_t i) {
  return F == Feedback::kNone ? nullptr : e + i;
}
template <Feedback F>
GW_INLINE const float* at(const float* e, int64_t i) {
  return F == Feedback::kNone ? nullptr : e + i;
}

template <Feedback F>
GW_INLINE Floats owed(const float* x, const float* e) {
  return F == Feedback::kOwed ? load(x) + load(e) : load(x);
}
template <Feedback F>
GW_INLINE void keep(float* e, Floats value, Floats decoded, Floats gain) {
  if (F == Feedback::kOwed) store(e, value - decoded);
  if (F == Feedback::kGain) store(e, load(e) + (value - decoded) * gain);
}

// Zero-padded copies, so that nothing is read or written past a stretch.
struct Padded {
  float x[kGroup], e[kGroup];
  GW_INLINE void fill(Padded& p, const float* x, const float* e, int64_t numel, int64_t room) {
    memset(p.x, 0, 4 * room);
    memset(p.e, 0, 4 * room);
    memcpy(p.x, x, 4 * numel);
    if (e) memcpy(p.e, e, 4 * numel);
  }
};

// Largest magnitude, as bits: NaN wins over infinity, infinity over the rest.
template <Feedback F>
GW_INLINE int32_t peak_bits(const float* x, const float* e, int64_t numel) {
  Ints peak[4] = {};
  int64_t i = 0;
  for (; i + 64 <= numel; i += 64)
    for (int k = 0; k < 8; k++)
      peak[k % 4] = larger(peak[k % 4], magnitude(owed<F>(x + i + 8 * k, at<F>(e, i + 8 * k))));
  if (i < numel) {
    Padded rest;
    Padded::fill(rest, x + i, at<F>(e, i), numel - i, 64);
    for (int k = 0; k < 8; k++)
      peak[k % 4] = larger(peak[k % 4], magnitude(owed<F>(rest.x + 8 * k, rest.e + 8 * k)));
  }
  return largest_lane(larger(larger(peak[0], peak[1]), larger(peak[2], peak[3])));
}

// Scale that takes the peak to `largest`. Peaks below the smallest normal number
// get scale 0 and stay in the residual. With 1 bit the scale is twice the peak and
// may overflow.
GW_OUTLINE void rare_scale(int32_t peak, float largest, Block& b) {
  const float m = from_bits(peak);
  b.scale = b.inverse = 0;
  b.finite = peak < kInfinity && to_bits(m / largest) < kInfinity;
  if (!b.finite) {
    b.scale = from_bits(kNaN);
  } else if (peak >= kSmallestNormal) {
    b.lift = m < 1 ? 0x1p64f : 0x1p-64f;
    b.scale = m / largest;
    b.inverse = largest / (m * b.lift);
  }
}
GW_INLINE Block scale_to(int32_t peak, float largest) {
  Block b;
  const float m = from_bits(peak);
  b.lift = 1;
  b.finite = true;
  b.scale = m / largest;
  b.inverse = largest / m;
  if (__builtin_expect(!(m >= 0x1p-64f && m <= 0x1p64f), 0)) rare_scale(peak, largest, b);
  return b;
}

// The groups of a block from `first` on, whatever they are.
template <class Codec, Feedback F>
GW_OUTLINE void encode_rest(const float* x, float* e, int64_t numel, uint8_t* codes, int64_t bytes,
                            const Block& block, int64_t first) {
  if (!block.finite) return Codec::void_block(codes, bytes);
  for (int64_t g = first; g * kGroup < numel; g++)
    Codec::template encode_part<F>(x + g * kGroup, at<F>(e, g * kGroup),
                                   smaller(kGroup, numel - g * kGroup),
                                   codes + g * Codec::kGroupBytes, block, g);
}

template <class Codec, Feedback F>
void encode_stretches(const EncodeJob& job) {
  const int64_t blocks = Codec::kScaled ? total_blocks(job.stretches, job.count, job.block_size) : 0;
  uint8_t* scales = job.payload;
  uint8_t* codes = job.payload + align_up(4 * blocks);
  memset(scales + 4 * blocks, 0, codes - (scales + 4 * blocks));
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    const float* x = job.x + stretch.offset;
    float* e = at<F>(job.residual, stretch.residual_offset);
    Place place = {job, mix64(job.stream + (uint64_t)stretch.stream),
                   (uint64_t)(stretch.start / job.block_size)};
    for (int64_t left = stretch.numel; left > 0; place.index++) {
      const int64_t numel = smaller(job.block_size, left);
      Block block = Codec::template measure<F>(x, e, numel, place);
      block.gain = job.gain;
      if (Codec::kScaled) {
        memcpy(scales, &block.scale, 4);
        scales += 4;
      }
      const int64_t rest = numel % kGroup;
      const int64_t bytes = numel / kGroup * Codec::kGroupBytes + (rest ? Codec::tail_bytes(rest) : 0);
      const int64_t whole = block.finite && block.plain ? numel / kGroup : 0;
      Codec::template encode_groups<F>(x, e, codes, block, whole);
      if (__builtin_expect(whole * kGroup < numel, 0))
        encode_rest<Codec, F>(x, e, numel, codes, bytes, block, whole);
      codes += bytes;
      x += numel;
      e = at<F>(e, numel);
      left -= numel;
    }
  }
  while ((codes - job.payload) % kAlignment) *codes++ = 0;
}

template <class Codec>
void encode(const EncodeJob& job) {
  if (!job.residual) return encode_stretches<Codec, Feedback::kNone>(job);
  if (job.gain > 0) return encode_stretches<Codec, Feedback::kGain>(job);
  return encode_stretches<Codec, Feedback::kOwed>(job);
}

// A last group, by way of padded copies. Codes of absent values are cut off or 0.
template <class Codec, Feedback F>
void encode_padded(const float* x, float* e, int64_t numel, uint8_t* codes, const Block& block) {
  Padded values;
  uint8_t buffer[Codec::kGroupBytes];
  Padded::fill(values, x, e, numel, kGroup);
  Codec::template encode_groups<F>(values.x, values.e, buffer, block, 1);
  Codec::narrow_tail(buffer, numel, codes);
  if (F != Feedback::kNone) memcpy(e, values.e, 4 * numel);
}

// Power-of-two divisors multiply: the same result, without a division.
struct Divisor {
  float divisor, factor;
  bool exact;
};
GW_INLINE Divisor make_divisor(float divisor) {
  int exponent;
  const float half = frexpf(divisor, &exponent);
  return {divisor, 1 / divisor, half == 0.5f && exponent > -100 && exponent < 100};
}
GW_INLINE void divide(float* values, int64_t numel, const Divisor& d) {
  if (d.divisor == 1) return;
  for (int64_t i = 0; i < numel; i++)
    values[i] = d.exact ? values[i] * d.factor : values[i] / d.divisor;
}

template <class Codec>
float scale_of(const uint8_t* scales) {
  float scale = 1;
  if (Codec::kScaled) memcpy(&scale, scales, 4);
  return scale;
}

// Sums one group of all payloads, up to 256 values, into a buffer of 256.
template <class Codec>
void sum_group(const DecodeJob& job, const uint8_t* codes, const uint8_t* scales, int64_t numel, float* sum) {
  uint8_t wide[Codec::kGroupBytes];
  for (int64_t row = 0; row < job.rows; row++, codes += job.row_bytes, scales += job.row_bytes) {
    const uint8_t* from = codes;
    if (numel < kGroup) {
      memset(wide, 0, sizeof wide);
      Codec::widen_tail(codes, numel, wide);
      from = wide;
    }
    const float scale = scale_of<Codec>(scales);
    if (row) Codec::template decode_groups<true>(from, scale, sum, 1);
    else Codec::template decode_groups<false>(from, scale, sum, 1);
  }
}

template <class Codec>
GW_OUTLINE void decode_group(const DecodeJob& job, const Divisor& divisor, const uint8_t* codes,
                             const uint8_t* scales, int64_t numel, float* out) {
  float buffer[kGroup];
  float* sum = job.accumulate || numel < kGroup ? buffer : out;
  sum_group<Codec>(job, codes, scales, numel, sum);
  divide(sum, numel, divisor);
  if (job.accumulate)
    for (int64_t i = 0; i < numel; i++) out[i] += sum[i];
  else if (sum != out)
    memcpy(out, sum, 4 * numel);
}

template <class Codec>
void decode(const DecodeJob& job) {
  const Divisor divisor = make_divisor(job.divisor);
  const bool direct = job.rows == 1 && job.divisor == 1;
  const int64_t blocks = Codec::kScaled ? total_blocks(job.stretches, job.count, job.block_size) : 0;
  const uint8_t* scales = job.payloads;
  const uint8_t* codes = job.payloads + align_up(4 * blocks);
  for (int64_t s = 0; s < job.count; s++) {
    float* out = job.out + job.stretches[s].offset;
    for (int64_t left = job.stretches[s].numel; left > 0;) {
      const int64_t numel = smaller(job.block_size, left);
      int64_t i = 0;
      if (direct && numel >= kGroup) {
        i = numel / kGroup * kGroup;
        const float scale = scale_of<Codec>(scales);
        if (job.accumulate) Codec::template decode_groups<true>(codes, scale, out, i / kGroup);
        else Codec::template decode_groups<false>(codes, scale, out, i / kGroup);
        codes += i / kGroup * Codec::kGroupBytes;
      }
      for (; i < numel; i += kGroup) {
        const int64_t some = smaller(kGroup, numel - i);
        decode_group<Codec>(job, divisor, codes, scales, some, out + i);
        codes += some == kGroup ? Codec::kGroupBytes : Codec::tail_bytes(some);
      }
      out += numel;
      left -= numel;
      if (Codec::kScaled) scales += 4;
    }
  }
}

}  // namespace GW_LEVEL
