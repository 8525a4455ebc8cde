#include "engine/open_files.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "engine/checked_files.hpp"
#include "ground/elapsed_time.hpp"
#include "ground/limits.hpp"

namespace penstock {
namespace {

// A fifth of the allowance is lent only: more than there are threads, except under a low limit.
constexpr std::ptrdiff_t lent_share = 5;

// Half of what the process may open: the rest is the user's, and for sockets, rings and pipes.
std::ptrdiff_t find_allowance() {
  rlimit limit{};
  constexpr auto kept_max = static_cast<std::ptrdiff_t>(limits::open_files_max);
  constexpr std::ptrdiff_t most = kept_max + kept_max / (lent_share - 1);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
  const auto half = static_cast<std::ptrdiff_t>(limit.rlim_cur / 2);
  return std::clamp<std::ptrdiff_t>(half, 1, most);
}

}  // namespace

OpenFiles& OpenFiles::of_process() {
  static std::atomic<OpenFiles*> current{nullptr};
  const pid_t pid = ::getpid();
  OpenFiles* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->owner_ != pid) {
    auto* fresh = new OpenFiles(pid);  // never freed: engines that live to the end of it use it
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

void OpenFiles::add(CheckedFiles* files) {
  const std::lock_guard lock(mutex_);
  files_.push_back(files);
}

void OpenFiles::remove(CheckedFiles* files) {
  const std::lock_guard lock(mutex_);
  std::erase(files_, files);
}

// Ask for the limit once a tick: it may change, but asking takes a good part of the time of opening
// a file.
std::ptrdiff_t OpenFiles::allowance() {
  const std::int64_t tick = read_tick();
  if (allowance_read_.load(std::memory_order_acquire) != tick) {
    allowance_.store(find_allowance(), std::memory_order_relaxed);
    allowance_read_.store(tick, std::memory_order_release);
  }
  return allowance_.load(std::memory_order_relaxed);
}

bool OpenFiles::take_below(std::ptrdiff_t bound) {
  std::ptrdiff_t now = open_count();
  while (now < bound) {
    if (open_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

Room OpenFiles::take_room(bool is_first) {
  const std::ptrdiff_t all = allowance();
  const std::ptrdiff_t lent = std::max<std::ptrdiff_t>(1, all / lent_share);
  do {
    if (take_below(all - lent)) return Room::kept;
  } while (close_idle());
  return is_first && take_below(all) ? Room::lent : Room::none;
}

// A part of them at a time: looking for the oldest costs some microseconds.
bool OpenFiles::close_idle() {
  const std::lock_guard lock(mutex_);
  std::vector<IdleFile> idle;
  for (CheckedFiles* files : files_) files->list_idle(idle);
  const std::size_t wanted = std::min(idle.size(), idle.size() / 16 + 1);
  const auto older = [](const IdleFile& a, const IdleFile& b) { return a.used < b.used; };
  const auto last = idle.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::partial_sort(idle.begin(), last, idle.end(), older);
  bool closed = false;
  for (auto file = idle.begin(); file != last; ++file) {
    closed = file->files->close_idle(file->file) || closed;
  }
  return closed;
}

}  // namespace penstock
