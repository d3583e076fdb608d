// Calls one kernel a number of times, for a program that counts instructions.
// Usage: instructions LIBRARY CASE NUMEL CALLS
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

using Quantize = int64_t (*)(const float*, int64_t, const int64_t*, int64_t, uint64_t, int, int, int, float*, int64_t, float, uint8_t*, int64_t, int);
using Dequantize = int64_t (*)(const uint8_t*, int64_t, int64_t, const int64_t*, int64_t, int, int, float, int, float*, int64_t);
using Sign = int64_t (*)(const float*, int64_t, const int64_t*, int64_t, int, float*, int64_t, float, uint8_t*, int64_t);
using Unsign = int64_t (*)(const uint8_t*, int64_t, int64_t, const int64_t*, int64_t, int, float, int, float*, int64_t);
using Shorten = int64_t (*)(const float*, int64_t, const int64_t*, int64_t, int, int, float*, int64_t, float, uint8_t*, int64_t);
using Hadamard = void (*)(const float*, float*, int64_t, int64_t, float);

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library || find<int (*)(int)>(library, "gw_set_isa")(1)) return 3;
  const std::string what = argv[2];
  const int64_t n = atoll(argv[3]);
  const int calls = atoi(argv[4]);
  const int bits = isdigit(what.back()) ? what.back() - '0' : 4;
  std::vector<float> x(n), e(n);
  std::vector<uint8_t> payload(n * 2 + 1024);
  uint32_t state = 1;
  for (float& value : x) {
    state = state * 1664525u + 1013904223u;
    const float u = (int32_t)state * 4.6566e-10f;
    value = u * u * u;
  }
  const int64_t row[5] = {0, 0, n, 0, 1};
  const int64_t quantized = n / 256 * 4 + n / 8 * bits, signs = n / 1024 * 4 + n / 8, floats = n / 256 * 4 + n;
  int64_t status = 4;
  for (int i = 0; i < calls; i++) {
    const bool feedback = what.compare(0, 8, "feedback") == 0;
    if (feedback || what.compare(0, 5, "plain") == 0)
      status = find<Quantize>(library, "gw_quantize_encode")(x.data(), n, row, 1, 7, bits, 256, 0, feedback ? e.data() : nullptr, n, 0, payload.data(), quantized, 0);
    else if (what.compare(0, 6, "decode") == 0)
      status = find<Dequantize>(library, "gw_quantize_decode")(payload.data(), 1, quantized, row, 1, bits, 256, 1, 1, e.data(), n);
    else if (what == "sign_encode")
      status = find<Sign>(library, "gw_sign_encode")(x.data(), n, row, 1, 1024, e.data(), n, 0, payload.data(), signs);
    else if (what == "sign_decode")
      status = find<Unsign>(library, "gw_sign_decode")(payload.data(), 1, signs, row, 1, 1024, 1, 1, e.data(), n);
    else if (what == "e4m3_encode")
      status = find<Shorten>(library, "gw_float_encode")(x.data(), n, row, 1, 3, 256, nullptr, 0, 0, payload.data(), floats);
    else if (what == "e4m3_accumulate")
      status = find<Dequantize>(library, "gw_float_decode")(payload.data(), 1, floats, row, 1, 3, 256, 1, 1, e.data(), n);
    else if (what == "hadamard") {
      find<Hadamard>(library, "gw_hadamard")(x.data(), e.data(), n / 1024, 1024, 0.03125f);
      status = 0;
    }
    if (status) return (int)status;
  }
  return 0;
}
