// One bit a value, and the mean magnitude of its block.
#pragma once
#include "quantize.h"

namespace GW_LEVEL {

// The usual block: while one is encoded, the next is fetched.
constexpr int64_t kPrefetchSigns = 1024;

// Sum of magnitudes times `factor`, in the order reference.py states.
template <Feedback F>
GW_INLINE float sum_magnitudes(const float* x, const float* e, int64_t numel, float factor) {
  Floats sum[4] = {};
  int64_t i = 0;
  for (; i + 32 <= numel; i += 32)
    for (int k = 0; k < 4; k++) {
      const Floats a = (Floats)magnitude(owed<F>(x + i + 8 * k, at<F>(e, i + 8 * k)));
      sum[k] += factor == 1 ? a : a * splat(factor);
    }
  if (i < numel) {
    Padded rest;
    Padded::fill(rest, x + i, at<F>(e, i), numel - i, 32);
    for (int k = 0; k < 4; k++)
      sum[k] += (Floats)magnitude(owed<F>(rest.x + 8 * k, rest.e + 8 * k)) * splat(factor);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// The mean of a block whose sum is not finite, though its values may be.
template <Feedback F>
__attribute__((noinline, cold)) void measure_overflow(const float* x, const float* e, int64_t numel, Block& b) {
  b.finite = peak_bits<F>(x, e, numel) < kInfinity;
  if (b.finite) b.scale = sum_magnitudes<F>(x, e, numel, 0x1p-17f) / (float)numel * 0x1p17f;
  else b.scale = from_bits(kNaN);
}

struct Signs {
  static constexpr bool kScaled = true;
  static constexpr int64_t kGroupBytes = 32;

  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place&) {
    Block b = {};
    b.plain = b.finite = true;
    b.scale = sum_magnitudes<F>(x, e, numel, 1) / (float)numel;
    if (__builtin_expect((to_bits(b.scale) & kMagnitude) >= kInfinity, 0)) measure_overflow<F>(x, e, numel, b);
    return b;
  }

  template <Feedback F>
  GW_OUTLINE void encode_groups(const float* x, float* e, uint8_t* codes, const Block& b, int64_t groups) {
    const Words top = splat_words(0x80000000u), scale = (Words)splat(b.scale);
    const Floats gain = splat(b.gain);
    for (int64_t g = 0; g < groups; g++, codes += 32) {
      Words packed = splat_words(0);
#pragma GCC unroll 32
      for (int r = 0; r < 32; r++) {
        if (r % 2 == 0) {
          __builtin_prefetch(x + 8 * r + kPrefetchSigns);
          if (F != Feedback::kNone) __builtin_prefetch(e + 8 * r + kPrefetchSigns, 1);
        }
        float* kept = at<F>(e, 8 * r);
        const Floats v = owed<F>(x + 8 * r, kept);
        const Words sign = (Words)v & top;
        packed = packed >> 1 | sign;
        keep<F>(kept, v, (Floats)(scale | sign), gain);
      }
      store_words(codes, packed);
      x += kGroup;
      e = at<F>(e, kGroup);
    }
  }
  template <Feedback F>
  GW_INLINE void encode_part(const float* x, float* e, int64_t numel, uint8_t* codes, const Block& b, int64_t) {
    encode_padded<Signs, F>(x, e, numel, codes, b);
  }
  GW_INLINE void narrow_tail(const uint8_t* from, int64_t, uint8_t* codes) { memcpy(codes, from, 32); }
  GW_INLINE int64_t tail_bytes(int64_t) { return 32; }
  GW_INLINE void widen_tail(const uint8_t* from, int64_t, uint8_t* codes) { memcpy(codes, from, 32); }
  GW_INLINE void void_block(uint8_t* codes, int64_t bytes) { memset(codes, 0, bytes); }

  template <bool kAdd>
  GW_OUTLINE void decode_groups(const uint8_t* codes, float scale_value, float* out, int64_t groups) {
    const Floats scale = splat(scale_value), negative = splat(-scale_value);
    for (int64_t g = 0; g < groups; g++, codes += 32) {
      const Words packed = load_words(codes);
#pragma GCC unroll 32
      for (int r = 0; r < 32; r++, out += 8) {
        if (r % 2 == 0) __builtin_prefetch(out + kPrefetch, 1);
        const Floats value = (Ints)(packed << (31 - r)) < 0 ? negative : scale;
        store(out, kAdd ? load(out) + value : value);
      }
    }
  }
};

static void sign_encode(const EncodeJob& job) { encode<Signs>(job); }
static void sign_decode(const DecodeJob& job) { decode<Signs>(job); }

}  // namespace GW_LEVEL
