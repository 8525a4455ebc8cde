#include "replay/replay.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <new>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::size_t scratch_bytes_max = std::size_t{16} << 20;
constexpr std::size_t alignment = 4096;
constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::int64_t nap_ns = 100'000'000;  // how soon a stop is noticed

timespec time_of(std::int64_t ns) {
  return {static_cast<time_t>(ns / second_ns), static_cast<long>(ns % second_ns)};
}

// The target of reads, one per thread: touched before a read is timed, and kept.
class Scratch {
 public:
  ~Scratch() { release(); }

  std::span<std::byte> of(std::size_t bytes) {
    bytes = std::min(std::max(bytes, alignment), scratch_bytes_max);
    if (bytes > size_) {
      release();
      const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
      data_ = static_cast<std::byte*>(::operator new(size, std::align_val_t{alignment}));
      size_ = size;
      std::fill_n(data_, size_, std::byte{1});
    }
    return {data_, size_};
  }

 private:
  void release() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t{alignment});
    data_ = nullptr;
    size_ = 0;
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Read by one system call, as the job did; bytes beyond the scratch memory overwrite earlier ones.
std::int64_t read_once(int fd, std::int64_t offset, std::int64_t length,
                       std::span<std::byte> scratch) {
  std::array<iovec, 1024> pieces;
  std::size_t count = 0;
  auto left = static_cast<std::size_t>(length);
  do {
    const std::size_t bytes = std::min(left, scratch.size());
    pieces[count++] = {scratch.data(), bytes};
    left -= bytes;
  } while (left > 0 && count < pieces.size());
  const ssize_t got = ::preadv(fd, pieces.data(), static_cast<int>(count), offset);
  return got < 0 ? -errno : got;
}

}  // namespace

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * second_ns + now.tv_nsec;
}

class Replay::Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Replay::Replay(std::span<const char> names, std::span<const std::int64_t> ends,
               std::size_t keep_max)
    : names_(names), ends_(ends), keep_max_(keep_max), kept_(ends.size()), locks_(64) {
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    if (end < before || static_cast<std::size_t>(end) > names.size()) {
      throw std::invalid_argument("the names' ends do not ascend within the names");
    }
    before = end;
  }
}

Replay::~Replay() = default;

std::string Replay::path(std::uint32_t file) const {
  const auto begin = static_cast<std::size_t>(file == 0 ? 0 : ends_[file - 1]);
  return {names_.data() + begin, static_cast<std::size_t>(ends_[file]) - begin};
}

// O_NONBLOCK is nothing to a file, and keeps a pipe of that name from holding us up.
int Replay::open(std::uint32_t file, bool direct) const {
  const std::string name = path(file);
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = ::open(name.c_str(), flags | (direct ? O_DIRECT : 0));
  return fd < 0 ? -errno : fd;
}

// The descriptor for reads of a file; null if the file cannot be opened.
Replay::Shared Replay::find_descriptor(std::uint32_t file) {
  {
    const std::lock_guard held(lock_of(file));
    Kept& kept = kept_[file];
    if (!kept.opened.empty()) return kept.opened.back();
    if (kept.unrecorded) return kept.unrecorded;
  }
  const int fd = open(file, false);
  unrecorded_opens_.fetch_add(1);
  if (fd < 0) return nullptr;
  auto opened = std::make_shared<Descriptor>(fd);
  if (unrecorded_kept_.fetch_add(1) < keep_max_) {
    const std::lock_guard held(lock_of(file));
    kept_[file].unrecorded = opened;
  } else {
    unrecorded_kept_.fetch_sub(1);
  }
  return opened;
}

// Release the descriptor that the job closes; the system closes it after the last read through it.
Replay::Shared Replay::release_descriptor(std::uint32_t file) {
  const std::lock_guard held(lock_of(file));
  std::vector<Shared>& opened = kept_[file].opened;
  if (opened.empty()) return nullptr;
  Shared last = std::move(opened.back());
  opened.pop_back();
  return last;
}

bool Replay::wait_until(std::int64_t due_ns) const {
  for (;;) {
    if (stopped_.load(std::memory_order_relaxed)) return false;
    const std::int64_t now = monotonic_ns();
    if (now >= due_ns) return true;
    const timespec until = time_of(std::min(due_ns, now + nap_ns));
    ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
}

std::int64_t Replay::perform(OperationKind act, std::uint32_t file, std::int64_t offset, std::int64_t length,
                             const Descriptor* from, std::span<std::byte> scratch) {
  switch (act) {
    case OperationKind::read:
      return from == nullptr ? -ENOENT : read_once(from->fd(), offset, length, scratch);
    case OperationKind::open:
    case OperationKind::open_direct: {
      const int fd = open(file, act == OperationKind::open_direct);
      if (fd < 0) return fd;
      auto opened = std::make_shared<Descriptor>(fd);
      const std::lock_guard held(lock_of(file));
      kept_[file].opened.push_back(std::move(opened));
      return 0;
    }
    case OperationKind::stat: {
      struct stat status{};
      const std::string name = path(file);
      return ::stat(name.c_str(), &status) == 0 ? 0 : -errno;
    }
    case OperationKind::close:
      (void)release_descriptor(file);
      return 0;
    case OperationKind::map:
      break;  // what the job read through the map is not known
  }
  return 0;
}

std::size_t Replay::perform(const OperationColumns& acts, bool paced, std::int64_t& due_ns,
                            const OperationResults& results) {
  const std::size_t count = acts.kind.size();
  for (const std::size_t size :
       {acts.file.size(), acts.offset.size(), acts.length.size(), acts.think_ns.size(),
        results.result.size(), results.late_ns.size(), results.duration_ns.size()}) {
    if (size != count) throw std::invalid_argument("columns differ in length");
  }
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (acts.kind[i] > static_cast<std::uint8_t>(OperationKind::map) || acts.file[i] >= ends_.size() ||
        acts.offset[i] < 0 || acts.length[i] < 0 || acts.think_ns[i] < 0) {
      throw std::invalid_argument("operation " + std::to_string(i) + " cannot be");
    }
    longest = std::max(longest, acts.length[i]);
  }
  thread_local Scratch memory;
  const std::span<std::byte> scratch = memory.of(static_cast<std::size_t>(longest));
  ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // else sleep ends up to 50 us late

  for (std::size_t i = 0; i < count; ++i) {
    const auto act = static_cast<OperationKind>(acts.kind[i]);
    const std::uint32_t file = acts.file[i];
    const Shared from = act == OperationKind::read ? find_descriptor(file) : nullptr;
    if (paced) due_ns += acts.think_ns[i];
    if (!wait_until(paced ? due_ns : 0)) return i;
    const std::int64_t start = monotonic_ns();
    results.result[i] = perform(act, file, acts.offset[i], acts.length[i], from.get(), scratch);
    const std::int64_t took = monotonic_ns() - start;
    results.late_ns[i] = paced ? start - due_ns : 0;
    results.duration_ns[i] = took;
    due_ns = paced ? due_ns + took : start + took;
  }
  return count;
}

}  // namespace penstock
