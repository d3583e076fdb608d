// Vectors of eight 32-bit lanes, by the compiler's vector extensions: one source
// for every instruction level. GW_LEVEL is the level's namespace. Nothing here
// or in the kernels may be a template or inline function of another namespace,
// or the linker could keep the copy of a level that this CPU lacks.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define GW_INLINE static inline __attribute__((always_inline))
// A loop that must keep the registers to itself.
#define GW_OUTLINE static __attribute__((noinline))

#ifdef __clang__
#define GW_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define GW_SHUFFLE(v, ...) __builtin_shuffle(v, Ints{__VA_ARGS__})
#endif

namespace GW_LEVEL {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));

constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kNaN = 0x7fc00000;
constexpr int32_t kSmallestNormal = 0x00800000;

GW_INLINE Floats load(const float* p) {
  Floats v;
  memcpy(&v, p, 32);
  return v;
}
GW_INLINE Words load_words(const void* p) {
  Words v;
  memcpy(&v, p, 32);
  return v;
}
GW_INLINE void store(float* p, Floats v) { memcpy(p, &v, 32); }
GW_INLINE void store_words(void* p, Words v) { memcpy(p, &v, 32); }

GW_INLINE Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x}; }
GW_INLINE Words splat_words(uint32_t x) { return Words{x, x, x, x, x, x, x, x}; }
GW_INLINE Ints splat_ints(int32_t x) { return Ints{x, x, x, x, x, x, x, x}; }

GW_INLINE Ints magnitude(Floats v) { return (Ints)v & splat_ints(kMagnitude); }
GW_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
GW_INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

GW_INLINE int32_t largest_lane(Ints v) {
  v = larger(v, GW_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = larger(v, GW_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5));
  return v[0] > v[1] ? v[0] : v[1];
}
// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))
GW_INLINE float sum_lanes(Floats v) {
  v = v + GW_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3);
  v = v + GW_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v[0] + v[1];
}

GW_INLINE float from_bits(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
GW_INLINE int32_t to_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
GW_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace GW_LEVEL
