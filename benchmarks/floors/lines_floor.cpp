// One memchr pass over a file in the page cache: the floor of finding its lines.
//
//   lines_floor PATH    for each line on stdin: one pass; prints lines and processor nanoseconds
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "protocol.hpp"

namespace {

constexpr std::size_t block_bytes = 1u << 19;

std::int64_t processor_ns() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::uint64_t count_lines(int file, char* block) {
  std::uint64_t lines = 0;
  ::off_t at = 0;
  for (::ssize_t n = 0; (n = ::pread(file, block, block_bytes, at)) > 0; at += n) {
    const char* p = block;
    const char* const end = p + n;
    while (p < end) {
      const void* found = std::memchr(p, '\n', static_cast<std::size_t>(end - p));
      if (found == nullptr) break;
      ++lines;
      p = static_cast<const char*>(found) + 1;
    }
  }
  return lines;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const int file = ::open(arguments[1], O_RDONLY | O_CLOEXEC);
  if (file < 0) return 1;
  floors::Pages block(block_bytes);
  while (std::getchar() == '\n') {
    const std::int64_t began = processor_ns();
    const std::uint64_t lines = count_lines(file, reinterpret_cast<char*>(block.data()));
    std::printf("%llu %lld\n", static_cast<unsigned long long>(lines),
                static_cast<long long>(processor_ns() - began));
    std::fflush(stdout);
  }
  ::close(file);
}
