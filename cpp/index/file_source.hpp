// A source that is an open file.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

#include "index/source.hpp"

namespace penstock {

// An open file, or the part of one from `start` on. The caller keeps and closes the descriptor.
struct FileSource : Source {
  FileSource(int file, std::uint64_t bytes, std::uint64_t start = 0)
      : Source(bytes), descriptor(file), start(start) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const ::ssize_t n = ::pread(descriptor, out.data() + done, out.size() - done,
                                  static_cast<::off_t>(start + offset + done));
      if (n == 0) break;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -errno;
      done += static_cast<std::size_t>(n);
    }
    return static_cast<std::int64_t>(done);
  }

  int descriptor;
  std::uint64_t start;
};

}  // namespace penstock
