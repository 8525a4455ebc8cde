// Instruction sets that this processor has and this system keeps, asked of the processor itself: the
// runtime libraries of some clangs answer every __builtin_cpu_supports with no. Whoever chooses
// between kernels asks here; other processors than x86-64 have none of these.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>

namespace penstock {

struct Processor {
  bool sse42 = false;
  bool popcnt = false;
  bool bmi = false;  // BMI1 and BMI2
  bool f16c = false;
  bool avx2 = false;
  bool avx512 = false;  // F, DQ, VL and BW
};

inline Processor read_processor() noexcept {
  Processor found;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  found.sse42 = (c >> 20 & 1) != 0;
  found.popcnt = (c >> 23 & 1) != 0;
  // What the system saves of a thread's registers: without that, AVX cannot be used.
  std::uint32_t saved = 0;
  if ((c >> 27 & 1) != 0) {
    std::uint32_t high = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  }
  const bool saves_avx = (saved & 0x06) == 0x06;
  const bool saves_avx512 = (saved & 0xe6) == 0xe6;
  found.f16c = saves_avx && (c >> 29 & 1) != 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.bmi = (b >> 3 & 1) != 0 && (b >> 8 & 1) != 0;
  found.avx2 = saves_avx && (b >> 5 & 1) != 0;
  constexpr std::uint32_t wanted = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  found.avx512 = saves_avx512 && (b & wanted) == wanted;
#endif
  return found;
}

inline const Processor& processor() noexcept {
  static const Processor found = read_processor();
  return found;
}

}  // namespace penstock
