#include "engine/open_files.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "engine/files.hpp"
#include "ground/limits.hpp"

namespace penstock {
namespace {

// Half of what the process may open: the rest is the user's, and for sockets, rings and pipes.
std::ptrdiff_t find_allowance() {
  rlimit limit{};
  constexpr auto most = static_cast<std::ptrdiff_t>(limits::open_files_max);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
  return std::min<std::ptrdiff_t>(most, static_cast<std::ptrdiff_t>(limit.rlim_cur / 2));
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

void OpenFiles::add(Files* files) {
  const std::lock_guard lock(mutex_);
  files_.push_back(files);
}

void OpenFiles::remove(Files* files) {
  const std::lock_guard lock(mutex_);
  std::erase(files_, files);
}

bool OpenFiles::make_room() {
  const std::ptrdiff_t allowance = find_allowance();
  return kept() < allowance || (close_idle() && kept() < allowance);
}

// A part of them at a time: looking for the oldest costs some microseconds.
bool OpenFiles::close_idle() {
  const std::lock_guard lock(mutex_);
  std::vector<IdleFile> idle;
  for (Files* files : files_) files->list_idle(idle);
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
