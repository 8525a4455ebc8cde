#include "flush.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace penstock {
namespace {

// One write: the kernel cuts it into what the device takes, and has all of it under way at once.
constexpr std::size_t write_bytes_max = std::size_t{32} << 20;
constexpr std::size_t write_bytes_min = std::size_t{1} << 20;  // where a rate makes it wait
constexpr double turn_s = 0.1;                                  // how much of a rate one write takes

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int Flush::run(int file, std::span<const std::byte> data) {
  written_ = 0;
  if (!data.empty() && ::fallocate(file, 0, 0, static_cast<off_t>(data.size())) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return errno;  // whatever else it says, some file systems know no such call
  }
  for (std::size_t at = 0; at < data.size();) {
    const std::size_t length = turn(data.size() - at);
    if (length == 0) return ECANCELED;
    for (const std::size_t end = at + length; at < end;) {
      const ssize_t done = ::pwrite(file, data.data() + at, end - at, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return done < 0 ? errno : EIO;
      at += static_cast<std::size_t>(done);
      written_ = at;
    }
  }
  return 0;
}

// How much may be written next, once it may; 0 after `stop`.
std::size_t Flush::turn(std::size_t left_bytes) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const double rate = bytes_per_s_, now = now_s();
    if (rate <= 0) return std::min(left_bytes, write_bytes_max);
    due_s_ = std::min(std::max(due_s_, now - turn_s), now + 60);
    if (due_s_ <= now) {
      const auto asked = static_cast<std::size_t>(rate * turn_s) & ~(write_bytes_min - 1);
      const auto length = std::min(left_bytes, std::clamp(asked, write_bytes_min, write_bytes_max));
      due_s_ += static_cast<double>(length) / rate;
      return length;
    }
    changed_.wait_for(lock, std::chrono::duration<double>(due_s_ - now));
  }
  return 0;
}

void Flush::throttle(double bytes_per_s) {
  const std::lock_guard lock(mutex_);
  bytes_per_s_ = bytes_per_s;
  due_s_ = 0;  // what was owed at the old rate is not waited for
  changed_.notify_all();
}

void Flush::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace penstock
