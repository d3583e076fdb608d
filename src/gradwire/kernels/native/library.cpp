// The C interface. Stateless but for the chosen instruction level; no threads,
// no allocation. Encoders and decoders return 0, or -1 where the arguments do
// not fit together, or 1 + what is wrong with the payloads: the index of a
// malformed stretch (sparse_decode), a number of planes (planes_decode).
#include "job.h"

#define GW_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" const Level gw_level_baseline;
#ifdef GW_X86_LEVELS
extern "C" const Level gw_level_v3;
extern "C" const Level gw_level_v4;
#endif

namespace {

int best_level() {
#ifdef GW_X86_LEVELS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v3 ? (v4 ? 2 : 1) : 0;
#else
  return 0;
#endif
}

int current_level = best_level();

const Level& level() {
#ifdef GW_X86_LEVELS
  if (current_level == 2) return gw_level_v4;
  if (current_level == 1) return gw_level_v3;
#endif
  return gw_level_baseline;
}

constexpr int kFloatBytes[] = {4, 2, 2, 1, 1};
constexpr bool kFloatScaled[] = {false, false, true, true, true};

struct Limits {
  int64_t values, residual;  // residual: -1 where there is none
};

bool inside(const Stretch* stretches, int64_t count, Limits limits, int block_size) {
  for (int64_t i = 0; i < count; i++) {
    const Stretch& s = stretches[i];
    if (s.numel < 1 || s.offset < 0 || s.offset > limits.values - s.numel) return false;
    if (limits.residual >= 0 &&
        (s.residual_offset < 0 || s.residual_offset > limits.residual - s.numel))
      return false;
    if (s.start < 0 || s.start % block_size) return false;
  }
  return true;
}

int64_t packed_size(const Stretch* stretches, int64_t count, int block_size, int bits) {
  int64_t codes = 0;
  for (int64_t i = 0; i < count; i++) codes += packed_bytes(stretches[i].numel, bits);
  return align_up(4 * total_blocks(stretches, count, block_size)) + align_up(codes);
}

int64_t float_size(const Stretch* stretches, int64_t count, int block_size, int format) {
  int64_t values = 0;
  for (int64_t i = 0; i < count; i++) values += stretches[i].numel;
  const int64_t blocks = kFloatScaled[format] ? total_blocks(stretches, count, block_size) : 0;
  return align_up(4 * blocks) + align_up(kFloatBytes[format] * values);
}

int64_t planes_size(const Stretch* stretches, int64_t count, int block_size, int planes) {
  if (count == 0) return 0;
  int64_t plane = 0;
  for (int64_t i = 0; i < count; i++) plane += packed_bytes(stretches[i].numel, 1);
  return kAlignment + align_up(4 * total_blocks(stretches, count, block_size)) + planes * align_up(plane);
}

// Size of a sparse payload, or -1 where a capacity is out of range.
int64_t sparse_size(const Stretch* stretches, int64_t count, const int64_t* capacities) {
  int64_t slots = 0;
  for (int64_t i = 0; i < count; i++) {
    if (capacities[i] < 0 || capacities[i] > stretches[i].numel) return -1;
    slots += capacities[i];
  }
  return align_up(4 * count) + 2 * align_up(4 * slots);
}

}  // namespace

GW_EXPORT int gw_best_isa() { return best_level(); }
GW_EXPORT int gw_isa() { return current_level; }
GW_EXPORT int gw_set_isa(int isa) {
  if (isa < 0 || isa > best_level()) return -1;
  current_level = isa;
  return 0;
}

GW_EXPORT int64_t gw_quantize_encode(const float* x, int64_t values, const Stretch* stretches,
                                     int64_t count, uint64_t stream, int bits, int block_size,
                                     int nearest, float* residual, int64_t residual_values,
                                     float gain, uint8_t* payload, int64_t payload_bytes, int l2) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, block_size)) return -1;
  if (packed_size(stretches, count, block_size, bits) != payload_bytes) return -1;
  level().quantize_encode({x, stretches, count, residual, gain, payload, block_size, bits, nearest != 0, stream, l2 != 0});
  return 0;
}

GW_EXPORT int64_t gw_quantize_decode(const uint8_t* payloads, int64_t rows, int64_t row_bytes,
                                     const Stretch* stretches, int64_t count, int bits, int block_size,
                                     float divisor, int accumulate, float* out, int64_t values) {
  if (!inside(stretches, count, {values, -1}, block_size)) return -1;
  if (packed_size(stretches, count, block_size, bits) != row_bytes) return -1;
  level().quantize_decode({payloads, rows, row_bytes, stretches, count, block_size, bits, divisor, accumulate != 0, out});
  return 0;
}

GW_EXPORT int64_t gw_planes_encode(const float* x, int64_t values, const Stretch* stretches,
                                   int64_t count, uint64_t stream, int bits, int planes, int block_size,
                                   float* residual, int64_t residual_values, float gain,
                                   uint8_t* payload, int64_t payload_bytes) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, block_size)) return -1;
  if (planes_size(stretches, count, block_size, planes) != payload_bytes) return -1;
  level().planes_encode({x, stretches, count, residual, gain, payload, block_size, bits, false, stream, false, planes});
  return 0;
}

GW_EXPORT int64_t gw_planes_decode(const uint8_t* payloads, int64_t rows, int64_t row_bytes,
                                   const Stretch* stretches, int64_t count, int bits, int planes,
                                   int block_size, float divisor, int accumulate, float* out, int64_t values) {
  if (!inside(stretches, count, {values, -1}, block_size)) return -1;
  if (planes_size(stretches, count, block_size, planes) != row_bytes) return -1;
  return 1 + level().planes_decode({payloads, rows, row_bytes, stretches, count, block_size, bits, divisor, accumulate != 0, out},
                                   planes);
}

GW_EXPORT int64_t gw_mixed_decode(const uint8_t* const* payloads, const int64_t* sizes, const int64_t* formats,
                                  const int64_t* block_sizes, int64_t* places, int64_t rows,
                                  const Stretch* stretches, int64_t count, float divisor, int accumulate,
                                  float* out, int64_t values) {
  for (int64_t row = 0; row < rows; row++) {
    if (formats[row] < 0 || formats[row] >= kFormats) return -1;
    if (!inside(stretches, count, {values, -1}, (int)block_sizes[row])) return -1;
    const int format = (int)formats[row], block_size = (int)block_sizes[row];
    const int64_t size = format < kSign ? float_size(stretches, count, block_size, format)
                                        : packed_size(stretches, count, block_size, format == kSign ? 1 : format - kQuantize);
    if (size != sizes[row]) return -1;
  }
  level().mixed_decode({payloads, formats, block_sizes, places, rows, stretches, count, divisor, accumulate != 0, out});
  return 0;
}

GW_EXPORT int64_t gw_sign_encode(const float* x, int64_t values, const Stretch* stretches,
                                 int64_t count, int block_size, float* residual,
                                 int64_t residual_values, float gain, uint8_t* payload,
                                 int64_t payload_bytes) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, block_size)) return -1;
  if (packed_size(stretches, count, block_size, 1) != payload_bytes) return -1;
  level().sign_encode({x, stretches, count, residual, gain, payload, block_size, 1, false, 0});
  return 0;
}

GW_EXPORT int64_t gw_sign_decode(const uint8_t* payloads, int64_t rows, int64_t row_bytes,
                                 const Stretch* stretches, int64_t count, int block_size,
                                 float divisor, int accumulate, float* out, int64_t values) {
  if (!inside(stretches, count, {values, -1}, block_size)) return -1;
  if (packed_size(stretches, count, block_size, 1) != row_bytes) return -1;
  level().sign_decode({payloads, rows, row_bytes, stretches, count, block_size, 1, divisor, accumulate != 0, out});
  return 0;
}

GW_EXPORT int64_t gw_float_encode(const float* x, int64_t values, const Stretch* stretches,
                                  int64_t count, int format, int block_size, float* residual,
                                  int64_t residual_values, float gain, uint8_t* payload,
                                  int64_t payload_bytes) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, block_size)) return -1;
  if (float_size(stretches, count, block_size, format) != payload_bytes) return -1;
  level().float_encode({x, stretches, count, residual, gain, payload, block_size, format, false, 0});
  return 0;
}

GW_EXPORT int64_t gw_float_decode(const uint8_t* payloads, int64_t rows, int64_t row_bytes,
                                  const Stretch* stretches, int64_t count, int format, int block_size,
                                  float divisor, int accumulate, float* out, int64_t values) {
  if (!inside(stretches, count, {values, -1}, block_size)) return -1;
  if (float_size(stretches, count, block_size, format) != row_bytes) return -1;
  level().float_decode({payloads, rows, row_bytes, stretches, count, block_size, format, divisor, accumulate != 0, out});
  return 0;
}

GW_EXPORT int64_t gw_sparse_threshold(const float* x, int64_t values, const Stretch* stretches,
                                      int64_t count, float* residual, int64_t residual_values,
                                      double density, float* thresholds) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, 1)) return -1;
  level().sparse_threshold({x, stretches, count, residual, 0, density, thresholds, nullptr, nullptr});
  return 0;
}

GW_EXPORT int64_t gw_sparse_encode(const float* x, int64_t values, const Stretch* stretches,
                                   int64_t count, float* thresholds, const int64_t* capacities,
                                   float* residual, int64_t residual_values, float gain,
                                   uint8_t* payload, int64_t payload_bytes) {
  if (!inside(stretches, count, {values, residual ? residual_values : -1}, 1)) return -1;
  if (sparse_size(stretches, count, capacities) != payload_bytes) return -1;
  level().sparse_encode({x, stretches, count, residual, gain, 0, thresholds, capacities, payload});
  return 0;
}

GW_EXPORT int64_t gw_sparse_decode(const uint8_t* payloads, int64_t rows, int64_t row_bytes,
                                   const Stretch* stretches, int64_t count,
                                   const int64_t* capacities, float divisor, int accumulate,
                                   float* out, int64_t values) {
  if (!inside(stretches, count, {values, -1}, 1)) return -1;
  if (sparse_size(stretches, count, capacities) != row_bytes) return -1;
  return 1 + level().sparse_decode({payloads, rows, row_bytes, stretches, count, 1, 0, divisor, accumulate != 0, out},
                                   capacities);
}

GW_EXPORT void gw_hadamard(const float* x, float* out, int64_t blocks, int64_t block_size, float norm) {
  level().hadamard(x, out, blocks, block_size, norm);
}
