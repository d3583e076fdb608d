// Values above a threshold, with their places.
#pragma once
#include "block.h"

namespace GW_LEVEL {

constexpr int32_t kLargestFinite = 0x7f7fffff;
constexpr int64_t kWindow = 4096;

struct Tail {
  int64_t count;
  double excess;
};

// How many finite magnitudes of every `stride`-th group exceed the threshold,
// and by how much in all.
template <Feedback F>
Tail measure_tail(const float* x, const float* e, int64_t numel, int64_t stride, float threshold) {
  const Ints cut = splat_ints(to_bits(threshold)), limit = splat_ints(kInfinity);
  Tail tail = {0, 0};
  Padded rest;
  for (int64_t i = 0; i < numel; i += kGroup * stride) {
    const float* xg = x + i;
    const float* eg = at<F>(e, i);
    if (i + kGroup > numel) {
      Padded::fill(rest, xg, eg, numel - i, kGroup);
      xg = rest.x;
      eg = rest.e;
    }
    Floats sum[4] = {};
    Ints count = splat_ints(0);
    for (int64_t j = 0; j < kGroup; j += 32)
      for (int k = 0; k < 4; k++) {
        const Ints a = magnitude(owed<F>(xg + j + 8 * k, at<F>(eg, j + 8 * k)));
        const Ints above = (a > cut) & (a < limit);
        sum[k] += (Floats)((Ints)((Floats)a - splat(threshold)) & above);
        count -= above;
      }
    tail.excess += (double)sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (int k = 0; k < 8; k++) tail.count += count[k];
  }
  return tail;
}

// See reference_sparse.py.
template <Feedback F>
float find_threshold(const float* x, const float* e, int64_t numel, double density) {
  double kept = ceil(density * (double)numel);
  if (kept < 1) kept = 1;
  if (kept > (double)numel) kept = (double)numel;
  int64_t stride = 1;
  while (stride < 16 && kept > (double)(2 * stride * 8192)) stride *= 2;
  const int64_t groups = div_up(numel, kGroup);
  int64_t sampled = div_up(groups, stride) * kGroup;
  if ((groups - 1) % stride == 0) sampled -= groups * kGroup - numel;
  const double target = kept * ((double)sampled / (double)numel);
  double fraction = target / (double)sampled;
  if (fraction < 0.1) fraction = 0.1;
  const double mean = measure_tail<F>(x, e, numel, stride, 0).excess / (double)sampled;
  float threshold = (float)(mean * log(1 / fraction));
  float low = 0, high = INFINITY;
  for (int round = 0; round < 8; round++) {
    const Tail tail = measure_tail<F>(x, e, numel, stride, threshold);
    const double count = (double)tail.count;
    if (fabs(count - target) <= target * (1.0 / 32)) return threshold;
    if (count > target) low = threshold;
    else high = threshold;
    const double step = tail.count ? tail.excess / count * log(count / target) : 0;
    threshold = (float)((double)threshold + step);
    if (!(low < threshold && threshold < high))
      threshold = (float)(high < INFINITY ? ((double)low + (double)high) / 2 : 2 * (double)low);
  }
  return low;
}

static void sparse_threshold(const SparseJob& job) {
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    const float* x = job.x + stretch.offset;
    job.thresholds[s] =
        job.residual ? find_threshold<Feedback::kOwed>(x, job.residual + stretch.residual_offset,
                                                       stretch.numel, job.density)
                     : find_threshold<Feedback::kNone>(x, nullptr, stretch.numel, job.density);
  }
}

// The values chosen so far. Once full, a value that is not finite takes the slot
// of the last finite one, and the list is sorted at the end.
struct Chosen {
  uint8_t* places;
  uint8_t* values;
  int64_t capacity, count, last_finite;
  bool sorted;

  GW_INLINE int32_t place(const Chosen& c, int64_t i) {
    int32_t place;
    memcpy(&place, c.places + 4 * i, 4);
    return place;
  }
  GW_INLINE float value(const Chosen& c, int64_t i) {
    float value;
    memcpy(&value, c.values + 4 * i, 4);
    return value;
  }
  GW_INLINE void put(Chosen& c, int64_t i, int32_t place, float value) {
    memcpy(c.places + 4 * i, &place, 4);
    memcpy(c.values + 4 * i, &value, 4);
  }
  GW_INLINE void swap(Chosen& c, int64_t i, int64_t j) {
    const int32_t p = place(c, i);
    const float v = value(c, i);
    put(c, i, place(c, j), value(c, j));
    put(c, j, p, v);
  }
};

GW_INLINE bool is_finite(float x) { return (to_bits(x) & kMagnitude) < kInfinity; }

// Slot of the last finite value, or -1. Looks at each slot once in all.
__attribute__((noinline, cold)) static int64_t slot_to_give_up(Chosen& c) {
  if (c.sorted) c.last_finite = c.count - 1;
  c.sorted = false;
  while (c.last_finite >= 0 && !is_finite(Chosen::value(c, c.last_finite))) c.last_finite--;
  return c.last_finite;
}

GW_INLINE void sift_down(Chosen& c, int64_t root, int64_t end) {
  for (int64_t child; (child = 2 * root + 1) < end; root = child) {
    if (child + 1 < end && Chosen::place(c, child) < Chosen::place(c, child + 1)) child++;
    if (Chosen::place(c, root) >= Chosen::place(c, child)) return;
    Chosen::swap(c, root, child);
  }
}
__attribute__((noinline, cold)) static void sort_by_place(Chosen& c) {
  for (int64_t i = c.count / 2 - 1; i >= 0; i--) sift_down(c, i, c.count);
  for (int64_t end = c.count - 1; end > 0; end--) {
    Chosen::swap(c, 0, end);
    sift_down(c, 0, end);
  }
}

template <Feedback F>
GW_INLINE float unsent(float value, float old, float gain) {
  return F == Feedback::kOwed ? value : old + value * gain;
}

// Takes the hits among 32 values. `e` is the stretch's whole residual; `kept`
// is where these values' residual begins.
template <Feedback F>
void take(uint32_t hits, const float* values, int64_t first, int64_t numel, float* e, float* kept, float gain, Chosen& c) {
  float next[32];
  if (F != Feedback::kNone)
    for (int64_t k = 0; k < numel; k++) next[k] = unsent<F>(values[k], kept[k], gain);
  for (; hits; hits &= hits - 1) {
    const int k = __builtin_ctz(hits);
    const float value = values[k];
    const bool finite = is_finite(value);
    int64_t slot = c.count;
    if (c.count == c.capacity) slot = finite ? -1 : slot_to_give_up(c);
    if (F != Feedback::kNone && (slot >= 0 || !finite))
      next[k] = F == Feedback::kOwed && finite ? 0 : kept[k];
    if (slot < 0) continue;
    if (slot < c.count) {
      const int64_t back = Chosen::place(c, slot);
      const float given_up = Chosen::value(c, slot);
      if (F != Feedback::kNone) {
        if (back >= first) next[back - first] = unsent<F>(given_up, kept[back - first], gain);
        else e[back] = unsent<F>(given_up, e[back], gain);
      }
    } else {
      c.count++;
    }
    Chosen::put(c, slot, (int32_t)(first + k), value);
  }
  if (F != Feedback::kNone) memcpy(kept, next, 4 * numel);
}

GW_INLINE uint32_t lane_bits(Ints mask) {
#ifdef __AVX2__
  return (uint32_t)__builtin_ia32_movmskps256((Floats)mask);
#else
  uint32_t bits = 0;
  for (int k = 0; k < 8; k++) bits |= (uint32_t)(mask[k] & 1) << k;
  return bits;
#endif
}

GW_INLINE bool any_lane(Ints mask) {
#ifdef __AVX2__
  return __builtin_ia32_movmskps256((Floats)mask) != 0;
#else
  uint64_t parts[4];
  memcpy(parts, &mask, 32);
  return (parts[0] | parts[1] | parts[2] | parts[3]) != 0;
#endif
}

template <Feedback F>
void select_stretch(const float* x, float* e, int64_t numel, int32_t cut_bits, float gain, Chosen& c) {
  const Ints cut = splat_ints(cut_bits < kLargestFinite ? cut_bits : kLargestFinite);
  Padded rest;
  for (int64_t i = 0; i < numel; i += 32) {
    const int64_t some = smaller(32, numel - i);
    const float* xs = x + i;
    float* kept = at<F>(e, i);
    if (some < 32) {
      Padded::fill(rest, xs, kept, some, 32);
      xs = rest.x;
      kept = rest.e;
    }
    Floats v[4];
    Ints above[4];
    for (int k = 0; k < 4; k++) {
      v[k] = owed<F>(xs + 8 * k, at<F>(kept, 8 * k));
      above[k] = magnitude(v[k]) > cut;
    }
    __builtin_prefetch(xs + 512);
    __builtin_prefetch(xs + 528);
    if (F != Feedback::kNone) {
      __builtin_prefetch(kept + 512, 1);
      __builtin_prefetch(kept + 528, 1);
    }
    if (__builtin_expect(any_lane((above[0] | above[1]) | (above[2] | above[3])), 0)) {
      uint32_t hits = 0;
      float values[32];
      for (int k = 0; k < 4; k++) {
        hits |= lane_bits(above[k]) << (8 * k);
        store(values + 8 * k, v[k]);
      }
      if (some < 32) hits &= (1u << some) - 1;
      take<F>(hits, values, i, some, e, kept, gain, c);
    } else {
      for (int k = 0; k < 4; k++) {
        if (F == Feedback::kOwed) store(kept + 8 * k, v[k]);
        if (F == Feedback::kGain) store(kept + 8 * k, load(kept + 8 * k) + v[k] * splat(gain));
      }
    }
    if (F != Feedback::kNone && some < 32) memcpy(e + i, rest.e, 4 * some);
  }
  if (!c.sorted) sort_by_place(c);
}

template <Feedback F>
void encode_sparse(const SparseJob& job) {
  int64_t slots = 0;
  for (int64_t s = 0; s < job.count; s++) slots += job.capacities[s];
  uint8_t* counts = job.payload;
  uint8_t* places = counts + align_up(4 * job.count);
  uint8_t* values = places + align_up(4 * slots);
  memset(counts, 0, places - counts);
  memset(places + 4 * slots, 0, values - (places + 4 * slots));
  memset(values + 4 * slots, 0, align_up(4 * slots) - 4 * slots);
  for (int64_t s = 0; s < job.count; s++) {
    const Stretch& stretch = job.stretches[s];
    Chosen c = {places, values, job.capacities[s], 0, 0, true};
    select_stretch<F>(job.x + stretch.offset, at<F>(job.residual, stretch.residual_offset),
                      stretch.numel, to_bits(job.thresholds[s]), job.gain, c);
    const int32_t count = (int32_t)c.count;
    memcpy(counts + 4 * s, &count, 4);
    memset(places + 4 * c.count, 0, 4 * (c.capacity - c.count));
    memset(values + 4 * c.count, 0, 4 * (c.capacity - c.count));
    places += 4 * c.capacity;
    values += 4 * c.capacity;
  }
}
static void sparse_encode(const SparseJob& job) {
  if (!job.residual) return encode_sparse<Feedback::kNone>(job);
  if (job.gain > 0) return encode_sparse<Feedback::kGain>(job);
  return encode_sparse<Feedback::kOwed>(job);
}

GW_INLINE int32_t place_at(const uint8_t* places, int64_t i) {
  int32_t place;
  memcpy(&place, places + 4 * i, 4);
  return place;
}
GW_INLINE bool ascending_within(const uint8_t* places, int64_t count, int64_t numel) {
  int64_t last = -1;
  for (int64_t i = 0; i < count; i++) {
    const int64_t place = place_at(places, i);
    if (place <= last) return false;
    last = place;
  }
  return last < numel;
}

// First of the ascending places that is not below `bound`.
GW_INLINE int64_t first_from(const uint8_t* places, int64_t count, int64_t bound) {
  int64_t low = 0;
  while (low < count) {
    const int64_t middle = low + (count - low) / 2;
    if (place_at(places, middle) < bound) low = middle + 1;
    else count = middle;
  }
  return low;
}

struct SparseRows {
  const uint8_t* counts;
  const uint8_t* places;
  int64_t values;  // bytes from a place to its value
};

// Sums the payloads' values with places in [start, start + numel).
GW_INLINE void sum_window(const DecodeJob& job, const SparseRows& rows, int64_t start, int64_t numel, float* sum) {
  memset(sum, 0, 4 * numel);
  for (int64_t row = 0; row < job.rows; row++) {
    const uint8_t* places = rows.places + row * job.row_bytes;
    int32_t count;
    memcpy(&count, rows.counts + row * job.row_bytes, 4);
    for (int64_t i = first_from(places, count, start); i < count; i++) {
      const int64_t place = place_at(places, i) - start;
      if (place >= numel) break;
      float value;
      memcpy(&value, places + rows.values + 4 * i, 4);
      sum[place] += value;
    }
  }
}

// Returns -1, or the index of the first stretch that is malformed.
static int64_t sparse_decode(const DecodeJob& job, const int64_t* capacities) {
  int64_t slots = 0;
  for (int64_t s = 0; s < job.count; s++) slots += capacities[s];
  const Divisor divisor = make_divisor(job.divisor);
  const int64_t head = align_up(4 * job.count), room = align_up(4 * slots);
  SparseRows rows = {job.payloads, job.payloads + head, room};
  float buffer[kWindow];
  for (int64_t s = 0; s < job.count; s++) {
    const int64_t numel = job.stretches[s].numel;
    for (int64_t row = 0; row < job.rows; row++) {
      int32_t count;
      memcpy(&count, rows.counts + row * job.row_bytes, 4);
      if (count < 0 || count > capacities[s] ||
          !ascending_within(rows.places + row * job.row_bytes, count, numel))
        return s;
    }
    for (int64_t start = 0; start < numel; start += kWindow) {
      const int64_t some = smaller(kWindow, numel - start);
      float* out = job.out + job.stretches[s].offset + start;
      float* sum = job.accumulate ? buffer : out;
      sum_window(job, rows, start, some, sum);
      divide(sum, some, divisor);
      if (job.accumulate)
        for (int64_t i = 0; i < some; i++) out[i] += sum[i];
    }
    rows.counts += 4;
    rows.places += 4 * capacities[s];
  }
  return -1;
}

}  // namespace GW_LEVEL
