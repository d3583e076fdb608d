// Levels of 1 to 8 bits, scaled by the block's largest magnitude.
#pragma once
#include "block.h"

namespace GW_LEVEL {

constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }

// 1.5 * 2^23: a float near it has its whole number in the low bits.
constexpr float kRoundingShift = 12582912.0f;
constexpr int32_t kRoundingBits = 0x4B400000;
constexpr int64_t kPrefetch = 512;

GW_INLINE int fraction_bits(int bits) { return bits > 6 ? 12 : 16; }
GW_INLINE float level_bias(int bits) { return bits == 1 ? 0.5f : (float)(1 << (bits - 1)); }

// The L2 norm of a block, as bits, by way of squares of values times a power of
// two that takes the largest to [1, 2). Not below infinity: not finite.
template <Feedback F>
GW_OUTLINE int32_t norm_bits(const float* x, const float* e, int64_t numel) {
  const int32_t peak = peak_bits<F>(x, e, numel);
  if (peak >= kInfinity) return kNaN;
  int32_t exponent = 254 - (peak >> 23);
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  const Floats down = splat(from_bits(exponent << 23));
  Floats sum[4] = {};
  int64_t i = 0;
  for (; i + 32 <= numel; i += 32)
    for (int k = 0; k < 4; k++) {
      const Floats v = owed<F>(x + i + 8 * k, at<F>(e, i + 8 * k)) * down;
      sum[k] += v * v;
    }
  if (i < numel) {
    Padded rest;
    Padded::fill(rest, x + i, at<F>(e, i), numel - i, 32);
    for (int k = 0; k < 4; k++) {
      const Floats v = owed<F>(rest.x + 8 * k, rest.e + 8 * k) * down;
      sum[k] += v * v;
    }
  }
  const float norm = sqrtf(sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3])));
  return to_bits(norm * from_bits((254 - exponent) << 23)) & kMagnitude;
}

// Any bits, rounding, scale and number of values; one row at a time.
template <Feedback F>
GW_OUTLINE void encode_levels(int bits, const float* x, float* e, int64_t numel, uint8_t* codes,
                   const Block& b, int64_t group) {
  Padded values;
  Padded::fill(values, x, e, numel, kGroup);
  uint8_t packed[32 * 9] = {};  // one word more than the last code may touch
  const int fraction = fraction_bits(bits);
  const float bias = level_bias(bits);
  const Floats shift = splat(kRoundingShift + bias * (float)(1 << fraction));
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
  Words counters = first_counters(b.key, group), random = splat_words(0);
  const int64_t rows = div_up(numel, 8);
  for (int64_t r = 0; r < rows; r++) {
    Words u = splat_words(1u << (fraction - 1));
    if (!b.nearest) {
      if (r % 2 == 0) {
        random = hash(counters);
        counters += splat_words(8 * kGolden32);
      }
      u = r % 2 ? random >> (32 - fraction) : random & splat_words((1u << fraction) - 1);
    }
    const Floats v = owed<F>(values.x + 8 * r, values.e + 8 * r);
    const Floats fixed = v * splat(b.lift) * splat(b.inverse) + shift;
    const Ints code = ((Ints)fixed - splat_ints(kRoundingBits) + (Ints)u) >> fraction;
    keep<F>(values.e + 8 * r, v, (to_floats(code) - splat(bias)) * splat(b.scale), splat(b.gain));
    const Words present = (Words)(lane + splat_ints((int32_t)(8 * r)) < splat_ints((int32_t)numel)) & (Words)code;
    const int64_t position = r * bits, offset = position % 32;
    uint8_t* word = packed + 32 * (position / 32);
    store_words(word, load_words(word) | present << (uint32_t)offset);
    if (offset + bits > 32) store_words(word + 32, present >> (uint32_t)(32 - offset));
  }
  memcpy(codes, packed, 32 * div_up(rows * bits, 32));
  if (F != Feedback::kNone) memcpy(e, values.e, 4 * numel);
}

template <int B>
struct Levels {
  static constexpr bool kScaled = true;
  static constexpr int64_t kGroupBytes = 32 * B;
  static constexpr int kFraction = B > 6 ? 12 : 16;
  static constexpr int kPeriodRows = 32 / gcd(32, B);  // rows after which codes meet a word's edge
  static constexpr int kPeriodWords = B / gcd(32, B);
  static constexpr int32_t kBias = B == 1 ? 0 : 1 << (B - 1);
  static constexpr float kShift = kRoundingShift + (B == 1 ? 0.5f : (float)kBias) * (1 << kFraction);
  static constexpr int32_t kTop = kRoundingBits >> kFraction;
  static constexpr uint32_t kWhole = ~0u << kFraction;  // the bits of the code

  struct PerWord {
    uint32_t of[kPeriodWords];
  };
  // What kTop, which is a multiple of 64, adds to each word of a period.
  static constexpr PerWord top_sums() {
    PerWord sums = {};
    for (int r = 0; r < kPeriodRows; r++) {
      const int word = r * B / 32, offset = r * B % 32;
      sums.of[word] += (uint32_t)kTop << offset;
      if (offset + B > 32) sums.of[word + 1] += (uint32_t)kTop >> (32 - offset);
    }
    return sums;
  }
  // The places of the codes' top bits.
  static constexpr PerWord top_bits() {
    PerWord bits = {};
    for (int r = 0; r < kPeriodRows; r++) {
      const int last = r * B + B - 1;
      bits.of[last / 32] |= 1u << (last % 32);
    }
    return bits;
  }

  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place& place) {
    const int32_t peak = place.job.l2 ? norm_bits<F>(x, e, numel) : peak_bits<F>(x, e, numel);
    Block b = scale_to(peak, B == 1 ? 0.5f : (float)((1 << (B - 1)) - 1));
    b.inverse *= 1 << kFraction;
    b.nearest = place.job.nearest;
    b.plain = b.lift == 1;
    b.key = block_key(place.seed, place.index);
    return b;
  }

  template <Feedback F>
  GW_INLINE void encode_groups(const float* x, float* e, uint8_t* codes, const Block& b, int64_t groups) {
    if (b.nearest) encode_rounded<F, true>(x, e, codes, b, groups);
    else encode_rounded<F, false>(x, e, codes, b, groups);
  }

  template <Feedback F, bool kNearest>
  GW_INLINE void encode_rounded(const float* x, float* e, uint8_t* codes, const Block& b, int64_t groups) {
    const Floats inverse = splat(b.inverse), gain = splat(b.gain);
    const Words half = (Words)splat(0.5f * b.scale);
    const Floats zero = splat(kRoundingShift + (float)kBias * (1 << kFraction));
    const Floats step = splat(b.scale / (1 << kFraction));
    Words counters = first_counters(b.key, 0);
    constexpr PerWord kSums = top_sums();
    for (int64_t row = 0; row < 32 * groups; row += kPeriodRows) {
      Words packed[kPeriodWords];
      for (int w = 0; w < kPeriodWords; w++) packed[w] = splat_words(0 - kSums.of[w]);
      Words random = splat_words(0);
#pragma GCC unroll 32
      for (int r = 0; r < kPeriodRows; r++) {
        Words u = splat_words(1u << (kFraction - 1));
        if (r % 2 == 0) {
          if (!kNearest) {
            random = upper_hash(counters);
            counters += splat_words(8 * kGolden32);
            u = (random ^ random >> 16) & splat_words((1u << kFraction) - 1);
          }
          __builtin_prefetch(x + (row + r) * 8 + kPrefetch);
          if (F != Feedback::kNone) __builtin_prefetch(e + (row + r) * 8 + kPrefetch, 1);
        } else if (!kNearest) {
          u = random >> (32 - kFraction);
        }
        float* kept = at<F>(e, (row + r) * 8);
        const Floats v = owed<F>(x + (row + r) * 8, kept);
        const Words fixed = (Words)(v * inverse + splat(kShift)) + u;  // a float still
        const Words whole = fixed & splat_words(kWhole);
        if (F != Feedback::kNone) {
          const Words minus = ~(fixed << (31 - kFraction)) & splat_words(0x80000000u);
          const Floats decoded = B == 1 ? (Floats)(half | minus) : ((Floats)whole - zero) * step;
          keep<F>(kept, v, decoded, gain);
        }
        const int word = r * B / 32, offset = r * B % 32, up = offset - kFraction;
        packed[word] += up >= 0 ? whole << up : (offset ? whole : fixed) >> -up;  // kTop too large
        if (offset + B > 32)
          packed[word + 1 < kPeriodWords ? word + 1 : word] += whole >> (kFraction + 32 - offset);
      }
      for (int w = 0; w < kPeriodWords; w++, codes += 32) store_words(codes, packed[w]);
    }
  }

  template <Feedback F>
  GW_INLINE void encode_part(const float* x, float* e, int64_t numel, uint8_t* codes,
                             const Block& b, int64_t group) {
    encode_levels<F>(B, x, e, numel, codes, b, group);
  }

  GW_INLINE int64_t tail_bytes(int64_t numel) { return packed_bytes(numel, B); }
  GW_INLINE void widen_tail(const uint8_t* from, int64_t numel, uint8_t* codes) {
    memcpy(codes, from, packed_bytes(numel, B));
  }
  GW_INLINE void void_block(uint8_t* codes, int64_t bytes) { memset(codes, 0, bytes); }

  // The code's top bit, flipped, makes it a signed number, widened by two shifts.
  template <bool kAdd>
  GW_OUTLINE void decode_groups(const uint8_t* codes, float scale_value, float* out, int64_t groups) {
    const Floats scale = splat(scale_value);
    const Words half = (Words)splat(0.5f * scale_value), top = splat_words(0x80000000u);
    constexpr PerWord kBits = top_bits();
    for (int64_t row = 0; row < 32 * groups; row += kPeriodRows) {
      Words packed[kPeriodWords];
      for (int w = 0; w < kPeriodWords; w++, codes += 32)
        packed[w] = load_words(codes) ^ splat_words(kBits.of[w]);
#pragma GCC unroll 32
      for (int r = 0; r < kPeriodRows; r++, out += 8) {
        const int word = r * B / 32, offset = r * B % 32, above = 32 - B - offset;
        Words high = above >= 0 ? packed[word] << above : packed[word] >> -above;
        if (above < 0) high |= packed[word + 1 < kPeriodWords ? word + 1 : word] << (32 + above);
        const Floats value = B == 1 ? (Floats)(half | (high & top))
                                    : to_floats((Ints)high >> (32 - B)) * scale;
        store(out, kAdd ? load(out) + value : value);
      }
    }
  }
};

// Runs `Do<Levels<bits>>`.
template <template <int> class Do, class Job>
void by_bits(const Job& job) {
  switch (job.bits) {
    case 1: return Do<1>::run(job);
    case 2: return Do<2>::run(job);
    case 3: return Do<3>::run(job);
    case 4: return Do<4>::run(job);
    case 5: return Do<5>::run(job);
    case 6: return Do<6>::run(job);
    case 7: return Do<7>::run(job);
    case 8: return Do<8>::run(job);
  }
}
template <int B>
struct EncodeLevels {
  static void run(const EncodeJob& job) { encode<Levels<B>>(job); }
};
template <int B>
struct DecodeLevels {
  static void run(const DecodeJob& job) { decode<Levels<B>>(job); }
};
static void quantize_encode(const EncodeJob& job) { by_bits<EncodeLevels>(job); }
static void quantize_decode(const DecodeJob& job) { by_bits<DecodeLevels>(job); }

}  // namespace GW_LEVEL
