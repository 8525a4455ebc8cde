// Forks, counted without a system call: each use of an engine asks whether the process is still the
// one that made it, several times a batch.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace penstock {

// A number that a process keeps and that differs in each child that it forks, and in theirs.
inline std::uint32_t count_forks() {
  static std::uint32_t forks = 0;  // written only where a fork has just left one thread
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks;
}

}  // namespace penstock
