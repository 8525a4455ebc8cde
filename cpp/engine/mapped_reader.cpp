// Copies from a map: the cheapest way to small extents that are in the page cache.
//
// A page that cannot be read (the file was cut short, or the storage failed) turns an access to the
// map into SIGBUS. The copy runs under a guard: the signal handler jumps back to the copy that
// faulted, and a read by system call finds out what there is and why there is no more. Bytes
// between the new end of a file and the end of its last page read as zeros without a signal, so
// the file is looked at again after the copy. Faults that are not ours go to the handler that was
// there before.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <vector>

#include "engine/reader.hpp"

namespace penstock {
namespace {

struct Guard {
  sigjmp_buf back;
  const std::byte* volatile from = nullptr;  // the map that is being copied from
  const std::byte* volatile to = nullptr;
  volatile std::size_t current = 0;  // the extent that is being copied
};

// initial-exec: the handler may run on a thread that never came here, and must not allocate.
[[gnu::tls_model("initial-exec")]] thread_local Guard* volatile active_guard = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local volatile bool passing_on = false;

// The handler before ours. Two places, so that a handler that runs never sees half a change.
struct sigaction previous_actions[2];
std::atomic<const struct sigaction*> previous_action{nullptr};

void end_by(int signal) {
  struct sigaction ordinary {};
  ordinary.sa_handler = SIG_DFL;
  ::sigaction(signal, &ordinary, nullptr);
  ::raise(signal);
}

// A handler that was installed after our first use has ours as its previous one. If it restores
// ours and raises the signal again, as faulthandler does, the process must end.
void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction* previous = previous_action.load(std::memory_order_acquire);
  const bool has_handler = previous != nullptr && previous->sa_handler != SIG_DFL &&
                           previous->sa_handler != SIG_IGN;
  if (!has_handler || (passing_on && info->si_code <= 0)) return end_by(signal);
  passing_on = true;
  if ((previous->sa_flags & SA_SIGINFO) != 0) {
    previous->sa_sigaction(signal, info, context);
  } else {
    previous->sa_handler(signal);
  }
  passing_on = false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  Guard* guard = active_guard;
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  // A code above 0 is the kernel's; signals sent by others have no address.
  if (guard != nullptr && info->si_code > 0 && address >= guard->from && address < guard->to) {
    active_guard = nullptr;
    siglongjmp(guard->back, 1);
  }
  pass_on(signal, info, context);
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

// Others (faulthandler, sanitizers) install handlers at any time, so ours is checked before each
// use: one cheap system call for many extents.
void install_handler() {
  struct sigaction current {};
  ::sigaction(SIGBUS, nullptr, &current);
  if (is_ours(current)) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  ::sigaction(SIGBUS, nullptr, &current);
  if (is_ours(current)) return;
  struct sigaction* place = &previous_actions[0];
  if (previous_action.load(std::memory_order_relaxed) == place) place = &previous_actions[1];
  *place = current;
  previous_action.store(place, std::memory_order_release);
  struct sigaction ours {};
  ours.sa_sigaction = on_bus_error;
  // NODEFER: leaving by siglongjmp must not leave the signal blocked.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, &ours, nullptr);
}

// Prefetch the first lines of an extent while the one before is being copied.
void prefetch(const std::byte* from, std::int64_t length) {
  const auto* at = reinterpret_cast<const char*>(from);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(length, 512); i += 64) {
    __builtin_prefetch(at + i);
  }
}

// A file of a chunk: its map, or errno.
struct ChunkFile {
  std::uint32_t file;
  Mapped mapped;
  int error;
};

// The source of an extent: a place in the map of a file; null if the extent is not in the map.
struct ExtentSource {
  const std::byte* data;
  std::size_t files;
};

// Not inlined: its variables may sit in registers, which a jump out of it does not disturb.
[[gnu::noinline]] void copy_all(Guard& guard, const ChunkFile* files, const ExtentSource* from,
                                const Extent* extents, std::size_t first, std::size_t count) {
  for (std::size_t i = first; i < count; ++i) {
    if (from[i].data == nullptr) continue;
    const Mapped& mapped = files[from[i].files].mapped;
    guard.from = mapped.data;
    guard.to = mapped.data + mapped.size;
    guard.current = i;
    if (i + 1 < count && from[i + 1].data != nullptr) {
      prefetch(from[i + 1].data, extents[i + 1].length);
    }
    std::memcpy(extents[i].target, from[i].data, static_cast<std::size_t>(extents[i].length));
  }
}

// Copy from the first extent on; return the one whose page could not be read, or their count. No
// object with a destructor may live here, because a fault jumps out.
std::size_t copy_guarded(const ChunkFile* files, const ExtentSource* from, const Extent* extents,
                         std::size_t first, std::size_t count) {
  Guard guard;
  if (sigsetjmp(guard.back, 0) != 0) return guard.current;
  active_guard = &guard;
  copy_all(guard, files, from, extents, first, count);
  active_guard = nullptr;
  return count;
}

class MappedReader final : public Reader {
 public:
  MappedReader(CheckedFiles& files, RunObserver& observer) : files_(files), observer_(observer) {}

  void read(const TicketPtr& ticket, std::size_t first_run, std::size_t last_run,
            Access /* through the page cache in any case */) override {
    install_handler();
    const std::size_t last = ticket->runs[last_run];
    for (std::size_t i = ticket->runs[first_run]; i < last;) i += copy(*ticket, i, last);
    observer_.finish_runs(ticket, last_run - first_run);
  }

 private:
  // Extents [first, last), of any files. Each file is looked at once after the copies: samples in
  // random order jump between shards, and a look at each jump would cost as much as the copy.
  // Returns how many extents this was done for: not all if the process may open no more files.
  std::size_t copy(Ticket& ticket, std::size_t first, std::size_t last) {
    const Extent* extents = ticket.extents.data() + first;
    std::size_t count = last - first;
    std::vector<ChunkFile> files;
    std::vector<ExtentSource> from(count);
    std::vector<std::size_t> unmapped;  // for the system call; usually none
    for (std::size_t i = 0; i < count; ++i) {
      const Extent& extent = extents[i];
      std::size_t h = i > 0 && extents[i - 1].file == extent.file ? from[i - 1].files : 0;
      while (h < files.size() && files[h].file != extent.file) ++h;
      if (h == files.size()) {
        Mapped mapped = files_.map(extent.file, files.empty());
        if (is_shortage(mapped.error) && !files.empty()) {
          count = i;
          break;
        }
        files.push_back({extent.file, mapped, mapped.error});
      }
      const Mapped& mapped = files[h].mapped;
      const bool inside = extent.offset + extent.length <= static_cast<std::int64_t>(mapped.size);
      // An empty file has no map to point into.
      const bool copied = files[h].error == 0 && inside && extent.length > 0;
      from[i] = {copied ? mapped.data + extent.offset : nullptr, h};
      if (!inside && files[h].error == 0) unmapped.push_back(i);
    }
    for (std::size_t i = 0; i < count; ++i) {
      i = copy_guarded(files.data(), from.data(), extents, i, count);
      if (i < count) unmapped.push_back(i);
    }
    bool failed = false;
    for (ChunkFile& each : files) {
      if (each.error == 0) each.error = files_.check_unchanged(each.file, each.mapped.fd);
      failed = failed || each.error != 0;
    }
    for (std::size_t i = 0; failed && i < count; ++i) {
      if (const int error = files[from[i].files].error; error != 0) ticket.fail(first + i, error, 0);
    }
    for (const std::size_t i : unmapped) {
      const ChunkFile& each = files[from[i].files];
      if (each.error == 0) read_by_call(each.mapped.fd, ticket, first + i);
    }
    for (ChunkFile& each : files) files_.release(each.mapped);
    return count;
  }

  static void read_by_call(int fd, Ticket& ticket, std::size_t i) {
    const Extent& extent = ticket.extents[i];
    std::int64_t got = 0;
    while (got < extent.length) {
      const auto wanted = static_cast<std::size_t>(extent.length - got);
      const ssize_t result = ::pread(fd, extent.target + got, wanted, extent.offset + got);
      if (result < 0 && errno == EINTR) continue;
      if (result <= 0) return ticket.fail(i, result < 0 ? errno : 0, got);
      got += result;
    }
  }

  CheckedFiles& files_;
  RunObserver& observer_;
};

}  // namespace

std::unique_ptr<Reader> make_mapped_reader(CheckedFiles& files, RunObserver& observer) {
  return std::make_unique<MappedReader>(files, observer);
}

}  // namespace penstock
