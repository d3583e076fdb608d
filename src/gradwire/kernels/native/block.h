// How every block codec runs over stretches, blocks and groups.
//
// A codec is a struct with static members:
//   kScaled, kGroupBytes           whether blocks have a scale; bytes of 256 codes
//   measure<F>(x, e, numel, job)   the block's scale, or not finite
//   encode_group<F>(x, e, codes, block, group)          256 values
//   encode_part<F>(x, e, numel, codes, block, group)    up to 256 values, any scale
//   tail_bytes(numel), widen_tail(from, numel, codes)   a stretch's last group
//   decode_group<kAdd>(codes, scale, out)
//   void_block(codes, bytes)       what a block that is not finite sends
#pragma once
#include "job.h"
#include "lanes.h"

namespace GW_LEVEL {

enum class Feedback { kNone, kOwed, kGain };

struct Block {
  float scale;    // on the wire
  float inverse;  // of the scale, for values times `lift`
  float lift;     // a power of two that keeps `inverse` in range
  bool finite;
  bool plain;  // lift is 1 and rounding is random: `encode_group` may be used
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
  for (; i + 32 <= numel; i += 32)
    for (int k = 0; k < 4; k++)
      peak[k] = larger(peak[k], magnitude(owed<F>(x + i + 8 * k, at<F>(e, i + 8 * k))));
  if (i < numel) {
    Padded rest;
    Padded::fill(rest, x + i, at<F>(e, i), numel - i, 32);
    for (int k = 0; k < 4; k++)
      peak[k] = larger(peak[k], magnitude(owed<F>(rest.x + 8 * k, rest.e + 8 * k)));
  }
  return largest_lane(larger(larger(peak[0], peak[1]), larger(peak[2], peak[3])));
}

// Scale that takes the peak to `largest`. Peaks below the smallest normal number
// get scale 0 and stay in the residual.
GW_INLINE Block scale_to(int32_t peak, float largest) {
  Block b = {};
  b.lift = 1;
  b.finite = peak < kInfinity;
  const float m = from_bits(peak);
  if (__builtin_expect(b.finite && m >= 0x1p-64f && m <= 0x1p64f, 1)) {
    b.scale = m / largest;
    b.inverse = largest / m;
  } else if (b.finite && peak >= kSmallestNormal) {
    b.lift = m < 1 ? 0x1p64f : 0x1p-64f;
    b.scale = m / largest;
    b.inverse = largest / (m * b.lift);
  } else if (!b.finite) {
    b.scale = from_bits(kNaN);
  }
  return b;
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
    for (int64_t done = 0; done < stretch.numel; done += job.block_size) {
      const int64_t numel = smaller(job.block_size, stretch.numel - done);
      const float* xb = x + done;
      float* eb = at<F>(e, done);
      Block block = Codec::template measure<F>(xb, eb, numel, job, stretch, done);
      block.gain = job.gain;
      if (Codec::kScaled) {
        memcpy(scales, &block.scale, 4);
        scales += 4;
      }
      const int64_t bytes = numel / kGroup * Codec::kGroupBytes +
                            (numel % kGroup ? Codec::tail_bytes(numel % kGroup) : 0);
      if (__builtin_expect(!block.finite, 0)) {
        Codec::void_block(codes, bytes);
      } else {
        const int64_t whole = block.plain ? numel / kGroup : 0;
        Codec::template encode_groups<F>(xb, eb, codes, block, whole);
        for (int64_t g = whole; g * kGroup < numel; g++)
          Codec::template encode_part<F>(xb + g * kGroup, at<F>(eb, g * kGroup),
                                         smaller(kGroup, numel - g * kGroup),
                                         codes + g * Codec::kGroupBytes, block, g);
      }
      codes += bytes;
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
GW_INLINE void encode_padded(const float* x, float* e, int64_t numel, uint8_t* codes,
                             const Block& block) {
  Padded values;
  uint8_t buffer[Codec::kGroupBytes];
  Padded::fill(values, x, e, numel, kGroup);
  Codec::template encode_group<F>(values.x, values.e, buffer, block);
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
GW_INLINE Floats divide(Floats v, const Divisor& d) {
  return d.exact ? v * splat(d.factor) : v / splat(d.divisor);
}
GW_INLINE void finish(float* sum, const Divisor& d) {
  if (d.divisor == 1) return;
  for (int64_t i = 0; i < kGroup; i += 8) store(sum + i, divide(load(sum + i), d));
}

template <class Codec>
struct Decoder {
  const DecodeJob& job;
  Divisor divisor;

  // Sums a whole group of all payloads into `out`.
  GW_INLINE void sum(const Decoder& d, const uint8_t* codes, const uint8_t* scales, float* out) {
    for (int64_t row = 0; row < d.job.rows; row++) {
      float scale = 1;
      if (Codec::kScaled) memcpy(&scale, scales + row * d.job.row_bytes, 4);
      const uint8_t* from = codes + row * d.job.row_bytes;
      if (row) Codec::template decode_group<true>(from, scale, out);
      else Codec::template decode_group<false>(from, scale, out);
    }
  }
  GW_INLINE void group(const Decoder& d, const uint8_t* codes, const uint8_t* scales, float* out) {
    if (!d.job.accumulate) {
      sum(d, codes, scales, out);
      finish(out, d.divisor);
    } else if (d.job.rows == 1 && d.divisor.divisor == 1) {
      float scale = 1;
      if (Codec::kScaled) memcpy(&scale, scales, 4);
      Codec::template decode_group<true>(codes, scale, out);
    } else {
      float buffer[kGroup];
      sum(d, codes, scales, buffer);
      finish(buffer, d.divisor);
      for (int64_t i = 0; i < kGroup; i += 8) store(out + i, load(out + i) + load(buffer + i));
    }
  }
  // The last group of a stretch.
  static void tail(const Decoder& d, const uint8_t* codes, const uint8_t* scales, int64_t numel, float* out) {
    float total[kGroup];
    uint8_t wide[Codec::kGroupBytes];
    for (int64_t row = 0; row < d.job.rows; row++) {
      float scale = 1;
      if (Codec::kScaled) memcpy(&scale, scales + row * d.job.row_bytes, 4);
      memset(wide, 0, sizeof wide);
      Codec::widen_tail(codes + row * d.job.row_bytes, numel, wide);
      if (row) Codec::template decode_group<true>(wide, scale, total);
      else Codec::template decode_group<false>(wide, scale, total);
    }
    finish(total, d.divisor);
    for (int64_t i = 0; i < numel; i++) out[i] = d.job.accumulate ? out[i] + total[i] : total[i];
  }
};

template <class Codec>
void decode(const DecodeJob& job) {
  const Decoder<Codec> decoder = {job, make_divisor(job.divisor)};
  const int64_t blocks = Codec::kScaled ? total_blocks(job.stretches, job.count, job.block_size) : 0;
  const uint8_t* scales = job.payloads;
  const uint8_t* codes = job.payloads + align_up(4 * blocks);
  for (int64_t s = 0; s < job.count; s++) {
    const int64_t numel = job.stretches[s].numel;
    float* out = job.out + job.stretches[s].offset;
    for (int64_t start = 0; start < numel; start += job.block_size) {
      const int64_t end = smaller(start + job.block_size, numel);
      int64_t i = start;
      for (; i + kGroup <= end; i += kGroup, codes += Codec::kGroupBytes)
        Decoder<Codec>::group(decoder, codes, scales, out + i);
      if (i < end) {
        Decoder<Codec>::tail(decoder, codes, scales, end - i, out + i);
        codes += Codec::tail_bytes(end - i);
      }
      if (Codec::kScaled) scales += 4;
    }
  }
}

}  // namespace GW_LEVEL
