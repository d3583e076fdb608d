// Shorter floats, rounded to nearest and ties to even.
#pragma once
#include "block.h"

namespace GW_LEVEL {

// Magnitudes as floats with `Mantissa` bits and exponent bias `Bias`, none above their
// largest: rounded by adding the power of two whose last bit is worth theirs.
template <int Mantissa, int Bias>
struct Short {
  static constexpr int kDrop = 23 - Mantissa;
  static constexpr uint32_t kExcess = (128 - Bias) << Mantissa;
  Words code;  // kExcess too large
  Floats value;
};
template <int Mantissa, int Bias>
GW_INLINE Short<Mantissa, Bias> to_short(Floats v) {
  constexpr int kDrop = 23 - Mantissa;
  const Ints biased = (Ints)v & splat_ints(kInfinity);
  const Words exponent = (Words)larger(biased, splat_ints((128 - Bias) << 23));
  const Words base = exponent + splat_words(kDrop << 23);
  const Floats sum = (Floats)magnitude(v) + (Floats)base;
  return {(Words)sum - base + (exponent >> kDrop), sum - (Floats)base};
}
GW_INLINE Words sign_bit(Floats v) { return (Words)v & splat_words(0x80000000u); }

template <int Mantissa, int Bias>
GW_INLINE Floats from_short(Words code) {
  constexpr int kDrop = 23 - Mantissa, kWidth = Mantissa == 10 ? 16 : 8;
  const Words bits = code & splat_words((1u << (kWidth - 1)) - 1);
  const Words sign = (code & splat_words(1u << (kWidth - 1))) << (32 - kWidth);
  const Words normal = (bits << kDrop) + splat_words((127 - Bias) << 23);
  constexpr uint32_t kExponent = 1 - Bias - Mantissa + 127;
  const Floats subnormal = to_floats((Ints)bits) * (Floats)splat_words(kExponent << 23);
  const Ints small = (Ints)bits < splat_ints(1 << Mantissa);
  return (Floats)((Words)(small ? (Ints)subnormal : (Ints)normal) | sign);
}

GW_INLINE void store_halves(uint8_t* p, Words v) {
  const Halves h = __builtin_convertvector(v, Halves);
  memcpy(p, &h, 16);
}
GW_INLINE Words load_halves(const uint8_t* p) {
  Halves h;
  memcpy(&h, p, 16);
  return __builtin_convertvector(h, Words);
}

// What the formats share; `Format` converts 32 values at a time.
template <class Format, int kWidth>
struct FloatCodec {
  static constexpr int64_t kGroupBytes = kGroup * kWidth;

  template <Feedback F>
  GW_OUTLINE void encode_groups(const float* x, float* e, uint8_t* codes, const Block& block, int64_t groups) {
    if (block.plain) encode_values<F, false>(x, e, codes, block, groups);
    else encode_values<F, true>(x, e, codes, block, groups);
  }
  template <Feedback F, bool kLifted>
  GW_INLINE void encode_values(const float* x, float* e, uint8_t* codes, const Block& block, int64_t groups) {
    const Block b = block;
    for (int64_t i = 0; i < groups * kGroup; i += 32) {
      Floats v[4], decoded[4];
      for (int k = 0; k < 4; k++) v[k] = owed<F>(x + i + 8 * k, at<F>(e, i + 8 * k));
      Format::template narrow<kLifted>(v, codes + i * kWidth, b, decoded);
      for (int k = 0; k < 4; k++) keep<F>(at<F>(e, i + 8 * k), v[k], decoded[k], splat(b.gain));
      __builtin_prefetch(x + i + 512);
      __builtin_prefetch(x + i + 528);
    }
  }
  template <Feedback F>
  GW_INLINE void encode_part(const float* x, float* e, int64_t numel, uint8_t* codes, const Block& b, int64_t) {
    encode_padded<Format, F>(x, e, numel, codes, b);
  }
  GW_INLINE int64_t tail_bytes(int64_t numel) { return numel * kWidth; }
  GW_INLINE void narrow_tail(const uint8_t* from, int64_t numel, uint8_t* codes) {
    memcpy(codes, from, numel * kWidth);
  }
  GW_INLINE void widen_tail(const uint8_t* from, int64_t numel, uint8_t* codes) {
    memcpy(codes, from, numel * kWidth);
  }
  GW_INLINE void void_block(uint8_t* codes, int64_t bytes) { memset(codes, 0, bytes); }

  template <bool kAdd>
  GW_OUTLINE void decode_groups(const uint8_t* codes, float scale, float* out, int64_t groups) {
    for (int64_t i = 0; i < groups * kGroup; i += 32) {
      Floats v[4];
      Format::widen(codes + i * kWidth, splat(scale), v);
      for (int k = 0; k < 4; k++) {
        float* to = out + i + 8 * k;
        store(to, kAdd ? load(to) + v[k] : v[k]);
      }
    }
  }
};

struct Float32 : FloatCodec<Float32, 4> {
  static constexpr bool kScaled = false;
  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place&) {
    Block b = {};
    b.plain = true;
    b.finite = peak_bits<F>(x, e, numel) < kInfinity;
    return b;
  }
  template <bool kLifted>
  GW_INLINE void narrow(const Floats* v, uint8_t* codes, const Block&, Floats* decoded) {
    for (int k = 0; k < 4; k++) {
      store_words(codes + 32 * k, (Words)v[k]);
      decoded[k] = v[k];
    }
  }
  GW_INLINE void widen(const uint8_t* codes, Floats, Floats* v) {
    for (int k = 0; k < 4; k++) v[k] = (Floats)load_words(codes + 32 * k);
  }
  GW_INLINE void void_block(uint8_t* codes, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4) memcpy(codes + i, &kNaN, 4);
  }
};

struct Bfloat16 : FloatCodec<Bfloat16, 2> {
  static constexpr bool kScaled = false;
  static constexpr int32_t kOverflow = 0x7f7f8000;  // rounds to infinity
  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place&) {
    Block b = {};
    b.plain = true;
    b.finite = peak_bits<F>(x, e, numel) < kOverflow;
    return b;
  }
  template <bool kLifted>
  GW_INLINE void narrow(const Floats* v, uint8_t* codes, const Block&, Floats* decoded) {
    for (int k = 0; k < 4; k++) {
      const Words bits = (Words)v[k];
      const Words code = (bits + splat_words(0x7fff) + ((bits >> 16) & splat_words(1))) >> 16;
      store_halves(codes + 16 * k, code);
      decoded[k] = (Floats)(code << 16);
    }
  }
  GW_INLINE void widen(const uint8_t* codes, Floats, Floats* v) {
    for (int k = 0; k < 4; k++) v[k] = (Floats)(load_halves(codes + 16 * k) << 16);
  }
  GW_INLINE void void_block(uint8_t* codes, int64_t bytes) {
    const uint16_t nan = kNaN >> 16;
    for (int64_t i = 0; i < bytes; i += 2) memcpy(codes + i, &nan, 2);
  }
};

struct Float16 : FloatCodec<Float16, 2> {
  static constexpr bool kScaled = true;
  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place&) {
    const int32_t peak = peak_bits<F>(x, e, numel);
    Block b = {};
    b.plain = true;
    b.finite = peak < kInfinity;
    if (!b.finite) {
      b.scale = from_bits(kNaN);
    } else if (peak >= kSmallestNormal) {
      int32_t exponent = (peak >> 23) - 127 - 14;  // peak / scale in [2^14, 2^15)
      if (exponent < -126) exponent = -126;
      b.scale = from_bits((exponent + 127) << 23);
      b.inverse = from_bits((127 - exponent) << 23);
    }
    return b;
  }
  template <bool kLifted>
  GW_INLINE void narrow(const Floats* v, uint8_t* codes, const Block& b, Floats* decoded) {
    for (int k = 0; k < 4; k++) {
      const Floats scaled = v[k] * splat(b.inverse);
      const auto half = to_short<10, 15>(scaled);
      store_halves(codes + 16 * k, half.code - splat_words(half.kExcess) + (sign_bit(scaled) >> 16));
      decoded[k] = (Floats)((Words)half.value | sign_bit(scaled)) * splat(b.scale);
    }
  }
  GW_INLINE void widen(const uint8_t* codes, Floats scale, Floats* v) {
    for (int k = 0; k < 4; k++) v[k] = from_short<10, 15>(load_halves(codes + 16 * k)) * scale;
  }
};

template <int Mantissa, int Bias>
struct Float8 : FloatCodec<Float8<Mantissa, Bias>, 1> {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = Mantissa == 3 ? 448.0f : 57344.0f;
  template <Feedback F>
  GW_INLINE Block measure(const float* x, const float* e, int64_t numel, const Place&) {
    Block b = scale_to(peak_bits<F>(x, e, numel), kLargest);
    b.plain = b.lift == 1;
    return b;
  }
  template <bool kLifted>
  GW_INLINE void narrow(const Floats* v, uint8_t* codes, const Block& b, Floats* decoded) {
    Words word = splat_words(0 - 0x01010101u * Short<Mantissa, Bias>::kExcess);
    for (int k = 0; k < 4; k++) {
      const Floats scaled = (kLifted ? v[k] * splat(b.lift) : v[k]) * splat(b.inverse);
      const auto byte = to_short<Mantissa, Bias>(scaled);
      word += (byte.code << (8 * k)) + (sign_bit(scaled) >> (24 - 8 * k));
      decoded[k] = (Floats)((Words)byte.value | sign_bit(scaled)) * splat(b.scale);
    }
    store_words(codes, word);
  }
  GW_INLINE void widen(const uint8_t* codes, Floats scale, Floats* v) {
    const Words word = load_words(codes);
    for (int k = 0; k < 4; k++)
      v[k] = from_short<Mantissa, Bias>((word >> (8 * k)) & splat_words(0xff)) * scale;
  }
  // The remainder of a last group of 32 stays in order.
  GW_INLINE void narrow_tail(const uint8_t* from, int64_t numel, uint8_t* codes) {
    const int64_t whole = numel / 32 * 32;
    memcpy(codes, from, whole);
    for (int64_t i = 0; i < numel - whole; i++) codes[whole + i] = from[whole + 4 * (i % 8) + i / 8];
  }
  GW_INLINE void widen_tail(const uint8_t* from, int64_t numel, uint8_t* codes) {
    const int64_t whole = numel / 32 * 32;
    memcpy(codes, from, whole);
    for (int64_t i = 0; i < numel - whole; i++) codes[whole + 4 * (i % 8) + i / 8] = from[whole + i];
  }
};

static void float_encode(const EncodeJob& job) {
  switch (job.bits) {
    case kFloat32: return encode<Float32>(job);
    case kBfloat16: return encode<Bfloat16>(job);
    case kFloat16: return encode<Float16>(job);
    case kFloat8E4M3: return encode<Float8<3, 7>>(job);
    case kFloat8E5M2: return encode<Float8<2, 15>>(job);
  }
}
static void float_decode(const DecodeJob& job) {
  switch (job.bits) {
    case kFloat32: return decode<Float32>(job);
    case kBfloat16: return decode<Bfloat16>(job);
    case kFloat16: return decode<Float16>(job);
    case kFloat8E4M3: return decode<Float8<3, 7>>(job);
    case kFloat8E5M2: return decode<Float8<2, 15>>(job);
  }
}

}  // namespace GW_LEVEL
