// Normalised Walsh-Hadamard transform in natural order.
#pragma once
#include "lanes.h"
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace GW_LEVEL {

GW_INLINE void butterfly(Floats& a, Floats& b) {
  const Floats difference = a - b;
  a = a + b;
  b = difference;
}

// Distances 1, 2 and 4, inside a vector. Multiplying by 1 or -1 is exact.
GW_INLINE Floats transform_lanes(Floats v) {
  const Floats by1 = {1, -1, 1, -1, 1, -1, 1, -1};
  const Floats by2 = {1, 1, -1, -1, 1, 1, -1, -1};
  const Floats by4 = {1, 1, 1, 1, -1, -1, -1, -1};
  v = v * by1 + GW_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6);
  v = v * by2 + GW_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v * by4 + GW_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3);
}

// Distances 1 to 32 over 64 values. The last pass of a block normalises.
template <bool kLast>
GW_INLINE void transform_64(const float* x, float* y, Floats norm) {
  Floats v[8];
  for (int k = 0; k < 8; k++) v[k] = transform_lanes(load(x + 8 * k));
  for (int k = 0; k < 8; k += 2) butterfly(v[k], v[k + 1]);
  for (int k = 0; k < 2; k++) {
    butterfly(v[k], v[k + 2]);
    butterfly(v[k + 4], v[k + 6]);
  }
  for (int k = 0; k < 4; k++) butterfly(v[k], v[k + 4]);
  for (int k = 0; k < 8; k++) store(y + 8 * k, kLast ? v[k] * norm : v[k]);
}

// Distances h and 2 h over a block.
GW_INLINE void transform_4(float* y, int64_t size, int64_t h) {
  for (int64_t o = 0; o < size; o += 4 * h)
    for (int64_t i = o; i < o + h; i += 8) {
      Floats a = load(y + i), b = load(y + i + h), c = load(y + i + 2 * h), d = load(y + i + 3 * h);
      butterfly(a, b);
      butterfly(c, d);
      butterfly(a, c);
      butterfly(b, d);
      store(y + i, a);
      store(y + i + h, b);
      store(y + i + 2 * h, c);
      store(y + i + 3 * h, d);
    }
}

// Stores past the caches, where the result would not stay in them anyway.
template <bool kPast>
GW_INLINE void put(float* p, Floats v) {
#ifdef __AVX__
  if (kPast) return _mm256_stream_ps(p, (__m256)v);
#endif
  store(p, v);
}

// The last distance, or last two: normalised, from the cache to the result.
template <bool kPast, bool kTwo>
GW_INLINE void transform_last(const float* y, float* out, int64_t size, Floats norm) {
  const int64_t h = kTwo ? size / 4 : size / 2;
  for (int64_t i = 0; i < h; i += 8) {
    Floats a = load(y + i), b = load(y + i + h);
    butterfly(a, b);
    if (kTwo) {
      Floats c = load(y + i + 2 * h), d = load(y + i + 3 * h);
      butterfly(c, d);
      butterfly(a, c);
      butterfly(b, d);
      put<kPast>(out + i + 2 * h, c * norm);
      put<kPast>(out + i + 3 * h, d * norm);
    }
    put<kPast>(out + i, a * norm);
    put<kPast>(out + i + h, b * norm);
  }
}

static void transform_small(const float* x, float* y, int64_t size, float norm) {
  float v[32];
  memcpy(v, x, 4 * size);
  for (int64_t h = 1; h < size; h *= 2)
    for (int64_t i = 0; i < size; i++)
      if (!(i & h)) {
        const float a = v[i], b = v[i + h];
        v[i] = a + b;
        v[i + h] = a - b;
      }
  for (int64_t i = 0; i < size; i++) y[i] = v[i] * norm;
}

constexpr int64_t kLargestBlock = 4096;
constexpr int64_t kPastCaches = 1 << 22;  // values; a few million do not fit

template <bool kPast>
GW_OUTLINE void transform_blocks(const float* x, float* out, int64_t blocks, int64_t size, Floats norm) {
  float y[kLargestBlock];
  for (int64_t n = 0; n < blocks; n++, x += size, out += size) {
    for (int64_t i = 0; i < size; i += 64) {
#pragma GCC unroll 4
      for (int k = 0; k < 64; k += 16) __builtin_prefetch(x + size + i + k);
      transform_64<false>(x + i, y + i, norm);
    }
    int64_t h = 64;
    for (; 4 * h < size; h *= 4) transform_4(y, size, h);
    if (4 * h == size) transform_last<kPast, true>(y, out, size, norm);
    else transform_last<kPast, false>(y, out, size, norm);
  }
}

static void hadamard(const float* x, float* out, int64_t blocks, int64_t size, float norm) {
  const Floats last = splat(norm);
  if (size <= 64) {
    for (int64_t n = 0; n < blocks; n++, x += size, out += size)
      if (size < 64) transform_small(x, out, size, norm);
      else transform_64<true>(x, out, last);
    return;
  }
  if (blocks * size < kPastCaches || (uintptr_t)out % sizeof(Floats)) return transform_blocks<false>(x, out, blocks, size, last);
  transform_blocks<true>(x, out, blocks, size, last);
#ifdef __AVX__
  _mm_sfence();
#endif
}

}  // namespace GW_LEVEL
