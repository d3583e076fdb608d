// Levels under a scale that all ranks share: signed bytes in order, which can be added up.
#pragma once
#include "quantize.h"

namespace GW_LEVEL {

typedef int8_t Bytes __attribute__((vector_size(32)));
#ifdef __clang__
#define GW_SHUFFLE_BYTES(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define GW_SHUFFLE_BYTES(v, ...) __builtin_shuffle(v, Bytes{__VA_ARGS__})
#endif

template <Feedback F>
void shared_peaks_of(const EncodeJob& job, int32_t* peaks) {
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    const float* x = job.x + stretch.offset;
    const float* e = at<F>((const float*)job.residual, stretch.residual_offset);
    for (int64_t i = 0; i < stretch.numel; i += job.block_size)
      *peaks++ = peak_bits<F>(x + i, at<F>(e, i), smaller(job.block_size, stretch.numel - i));
  }
}

static void shared_peaks(const EncodeJob& job, int32_t* peaks) {
  if (job.residual) shared_peaks_of<Feedback::kOwed>(job, peaks);
  else shared_peaks_of<Feedback::kNone>(job, peaks);
}

template <Feedback F>
GW_INLINE Words shared_row(const float* x, float* e, const Block& b, Words u, int fraction) {
  const Floats v = owed<F>(x, e);
  const Floats fixed = v * splat(b.lift) * splat(b.inverse) + splat(kRoundingShift);
  const Ints level = ((Ints)fixed - splat_ints(kRoundingBits) + (Ints)u) >> fraction;
  keep<F>(e, v, to_floats(level) * splat(b.scale), splat(0));
  return (Words)level & splat_words(0xff);
}

// 4 rows of 8 values. Byte k of lane l is the level of row k; in memory rows follow each other.
template <Feedback F>
GW_INLINE void shared_rows(const float* x, float* e, const Block& b, Words& counters, int fraction, int8_t* out) {
  const Words mask = splat_words((1u << fraction) - 1), step = splat_words(8 * kGolden32);
  const Words first = hash(counters), second = hash(counters + step);
  counters += step + step;
  const Words rows = shared_row<F>(x, e, b, first & mask, fraction) |
                     shared_row<F>(x + 8, at<F>(e, 8), b, first >> (32 - fraction), fraction) << 8 |
                     shared_row<F>(x + 16, at<F>(e, 16), b, second & mask, fraction) << 16 |
                     shared_row<F>(x + 24, at<F>(e, 24), b, second >> (32 - fraction), fraction) << 24;
  const Bytes in_order = GW_SHUFFLE_BYTES((Bytes)rows, 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29,
                                          2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  memcpy(out, &in_order, 32);
}

template <Feedback F, int kFraction>
GW_OUTLINE void shared_block(const float* x, float* e, int64_t numel, const Block& b, int8_t* out) {
  Words counters = first_counters(b.key, 0);
  int64_t i = 0;
  for (; i + 32 <= numel; i += 32) shared_rows<F>(x + i, at<F>(e, i), b, counters, kFraction, out + i);
  if (i == numel) return;
  Padded rest;
  int8_t levels[32];
  Padded::fill(rest, x + i, at<F>(e, i), numel - i, 32);
  shared_rows<F>(rest.x, rest.e, b, counters, kFraction, levels);
  memcpy(out + i, levels, numel - i);
  if (F != Feedback::kNone) memcpy(e + i, rest.e, 4 * (numel - i));
}

template <Feedback F>
void shared_encode_of(const EncodeJob& job, const int32_t* peaks) {
  const int fraction = fraction_bits(job.bits);
  int8_t* out = (int8_t*)job.payload;
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    const uint64_t seed = mix64(job.stream + (uint64_t)stretch.stream);
    for (int64_t i = 0; i < stretch.numel; i += job.block_size) {
      const int64_t numel = smaller(job.block_size, stretch.numel - i);
      Block b = scale_to(*peaks++, (float)((1 << (job.bits - 1)) - 1));
      b.inverse *= 1 << fraction;
      b.key = block_key(seed, (uint64_t)((stretch.start + i) / job.block_size));
      const float* x = job.x + stretch.offset + i;
      float* e = at<F>(job.residual, stretch.residual_offset + i);
      if (!b.finite) memset(out, 0, numel);
      else if (fraction == 12) shared_block<F, 12>(x, e, numel, b, out);
      else shared_block<F, 16>(x, e, numel, b, out);
      out += numel;
    }
  }
}

static void shared_encode(const EncodeJob& job, const int32_t* peaks) {
  if (job.residual) shared_encode_of<Feedback::kOwed>(job, peaks);
  else shared_encode_of<Feedback::kNone>(job, peaks);
}

// Adds rows of levels to a total while it is in the cache.
template <class T>
void add_levels(const int8_t* levels, int64_t rows, int64_t numel, bool accumulate, T* total) {
  constexpr int64_t kPiece = 4096;
  for (int64_t start = 0; start < numel; start += kPiece) {
    const int64_t count = smaller(kPiece, numel - start);
    T* sum = total + start;
    for (int64_t row = 0; row < rows; row++) {
      const int8_t* from = levels + row * numel + start;
      if (row == 0 && !accumulate)
        for (int64_t i = 0; i < count; i++) sum[i] = from[i];
      else
        for (int64_t i = 0; i < count; i++) sum[i] = (T)(sum[i] + from[i]);
    }
  }
}

static void shared_sum(const int8_t* levels, int64_t rows, int64_t numel, bool accumulate, void* total, int width) {
  if (width == 1) add_levels(levels, rows, numel, accumulate, (int8_t*)total);
  else if (width == 2) add_levels(levels, rows, numel, accumulate, (int16_t*)total);
  else add_levels(levels, rows, numel, accumulate, (int32_t*)total);
}

template <class T>
void shared_decode_of(const DecodeJob& job, const int32_t* peaks, const T* sums) {
  const Divisor divisor = make_divisor(job.divisor);
  for (int64_t s = 0; s < job.count; s++) {
    float* out = job.out + job.stretches[s].offset;
    for (int64_t left = job.stretches[s].numel; left > 0;) {
      const int64_t numel = smaller(job.block_size, left);
      const float scale = scale_to(*peaks++, (float)((1 << (job.bits - 1)) - 1)).scale;
      for (int64_t i = 0; i < numel; i++) out[i] = (float)sums[i] * scale;
      divide(out, numel, divisor);
      sums += numel;
      out += numel;
      left -= numel;
    }
  }
}

static void shared_decode(const DecodeJob& job, const int32_t* peaks, int width) {
  if (width == 1) shared_decode_of(job, peaks, (const int8_t*)job.payloads);
  else if (width == 2) shared_decode_of(job, peaks, (const int16_t*)job.payloads);
  else shared_decode_of(job, peaks, (const int32_t*)job.payloads);
}

}  // namespace GW_LEVEL
