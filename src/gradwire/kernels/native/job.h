// What one op call is asked to do. Plain data, shared by all instruction levels.
#pragma once
#include <stdint.h>

struct Stretch {  // one row of `segments`
  int64_t offset, residual_offset, numel, start, stream;
};

enum FloatFormat { kFloat32, kBfloat16, kFloat16, kFloat8E4M3, kFloat8E5M2 };
constexpr int kSign = 5, kQuantize = 5, kFormats = 14;

struct EncodeJob {
  const float* x;
  const Stretch* stretches;
  int64_t count;
  float* residual;  // or null
  float gain;
  uint8_t* payload;
  int block_size;
  int bits;  // quantize: bits; float: a FloatFormat
  bool nearest;
  uint64_t stream;
  bool l2 = false;  // quantize: the scale is a norm
  int planes = 0;
};

struct DecodeJob {
  const uint8_t* payloads;  // `rows` payloads of `row_bytes`
  int64_t rows, row_bytes;
  const Stretch* stretches;
  int64_t count;
  int block_size;
  int bits;
  float divisor;
  bool accumulate;
  float* out;
};

// Payloads of different formats, summed in order.
struct MixedJob {
  const uint8_t* const* payloads;
  const int64_t* formats;  // a FloatFormat, kSign, or kQuantize + bits
  const int64_t* block_sizes;
  int64_t* places;  // room for two numbers a row: the next scale and codes
  int64_t rows;
  const Stretch* stretches;
  int64_t count;
  float divisor;
  bool accumulate;
  float* out;
};

struct SparseJob {
  const float* x;
  const Stretch* stretches;
  int64_t count;
  float* residual;
  float gain;
  double density;
  float* thresholds;
  const int64_t* capacities;
  uint8_t* payload;
};

// The kernels of one instruction level.
struct Level {
  void (*quantize_encode)(const EncodeJob&);
  void (*quantize_decode)(const DecodeJob&);
  void (*planes_encode)(const EncodeJob&);
  int64_t (*planes_decode)(const DecodeJob&, int planes);
  void (*mixed_decode)(const MixedJob&);
  void (*sign_encode)(const EncodeJob&);
  void (*sign_decode)(const DecodeJob&);
  void (*float_encode)(const EncodeJob&);
  void (*float_decode)(const DecodeJob&);
  void (*sparse_threshold)(const SparseJob&);
  void (*sparse_encode)(const SparseJob&);
  int64_t (*sparse_decode)(const DecodeJob&, const int64_t* capacities);
  void (*hadamard)(const float* x, float* out, int64_t blocks, int64_t block_size, float norm);
};

constexpr int64_t kGroup = 256;
constexpr int64_t kAlignment = 16;

static inline int64_t align_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
static inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bytes of `numel` packed codes, as gradwire.layout.packed_bytes.
static inline int64_t packed_bytes(int64_t numel, int64_t bits) {
  int64_t rows = div_up(numel % kGroup, 8);
  return 32 * bits * (numel / kGroup) + 32 * div_up(rows * bits, 32);
}

// Bytes that the codes of `numel` values take in a payload of `mixed_decode`.
static inline int64_t format_bytes(int64_t format, int64_t numel) {
  constexpr int64_t kWidths[] = {4, 2, 2, 1, 1};
  if (format < kSign) return kWidths[format] * numel;
  return packed_bytes(numel, format == kSign ? 1 : format - kQuantize);
}

static inline int64_t total_blocks(const Stretch* stretches, int64_t count, int64_t block_size) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; i++) blocks += div_up(stretches[i].numel, block_size);
  return blocks;
}
