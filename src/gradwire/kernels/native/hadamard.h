// Normalised Walsh-Hadamard transform in natural order.
#pragma once
#include "lanes.h"

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
template <bool kLast>
GW_INLINE void transform_4(float* y, int64_t size, int64_t h, Floats norm) {
  for (int64_t o = 0; o < size; o += 4 * h)
    for (int64_t i = o; i < o + h; i += 8) {
      Floats a = load(y + i), b = load(y + i + h), c = load(y + i + 2 * h), d = load(y + i + 3 * h);
      butterfly(a, b);
      butterfly(c, d);
      butterfly(a, c);
      butterfly(b, d);
      store(y + i, kLast ? a * norm : a);
      store(y + i + h, kLast ? b * norm : b);
      store(y + i + 2 * h, kLast ? c * norm : c);
      store(y + i + 3 * h, kLast ? d * norm : d);
    }
}
GW_INLINE void transform_2(float* y, int64_t size, int64_t h, Floats norm) {
  for (int64_t i = 0; i < size / 2; i += 8) {
    Floats a = load(y + i), b = load(y + i + h);
    butterfly(a, b);
    store(y + i, a * norm);
    store(y + i + h, b * norm);
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

static void hadamard(const float* x, float* out, int64_t blocks, int64_t size, float norm) {
  const Floats last = splat(norm);
  for (int64_t n = 0; n < blocks; n++, x += size, out += size) {
    if (size < 64) {
      transform_small(x, out, size, norm);
      continue;
    }
    if (size == 64) {
      transform_64<true>(x, out, last);
      continue;
    }
    for (int64_t i = 0; i < size; i += 64) {
      for (int64_t k = i; k < i + 64; k += 16) {
        __builtin_prefetch(x + size + k);
        __builtin_prefetch(out + size + k, 1);
      }
      transform_64<false>(x + i, out + i, last);
    }
    int64_t h = 64;
    for (; 4 * h < size; h *= 4) transform_4<false>(out, size, h, last);
    if (4 * h == size) transform_4<true>(out, size, h, last);
    else if (2 * h == size) transform_2(out, size, h, last);
  }
}

}  // namespace GW_LEVEL
