// A folder of files with known bytes, on a disk (tmpfs would accept any direct read).
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/support/check.hpp"
#include "engine/checked_files.hpp"

namespace penstock::tests {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

inline std::int64_t below(Random& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
}

inline Bytes random_bytes(Random& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class Dataset {
 public:
  explicit Dataset(std::vector<Bytes> contents) : contents_(std::move(contents)) {
    const char* parent = std::getenv("TMPDIR");
    folder_ = std::string(parent != nullptr ? parent : "/var/tmp") + "/penstock-XXXXXX";
    CHECK(::mkdtemp(folder_.data()) != nullptr);
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      names_ += std::to_string(i);
      ends_.push_back(static_cast<std::int64_t>(names_.size()));
      write(i, contents_[i]);
      struct stat info {};
      CHECK(::stat(path(i).c_str(), &info) == 0);
      size_.push_back(info.st_size);
      mtime_ns_.push_back(std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec);
    }
  }
  ~Dataset() {
    for (std::size_t i = 0; i < contents_.size(); ++i) ::unlink(path(i).c_str());
    ::rmdir(folder_.c_str());
  }
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  FileColumns columns() const { return {folder_, names_, ends_, size_, mtime_ns_}; }
  std::string path(std::size_t file) const { return folder_ + "/" + std::to_string(file); }
  const Bytes& content(std::size_t file) const { return contents_[file]; }
  std::size_t count() const { return contents_.size(); }

  void write(std::size_t file, const Bytes& bytes) const {
    const int fd = ::open(path(file).c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK(::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }

 private:
  std::vector<Bytes> contents_;
  std::string folder_;
  std::string names_;
  std::vector<std::int64_t> ends_;
  std::vector<std::int64_t> size_;
  std::vector<std::int64_t> mtime_ns_;
};

}  // namespace penstock::tests
