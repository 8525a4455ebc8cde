// Copies from a map: the cheapest way to small extents that are in the page cache.
//
// A file cut short turns an access to its map into SIGBUS. The copy runs under a guard: the signal
// handler jumps back to the copy that faulted, which becomes a failed extent. Bytes between the
// new end of a file and the end of its last page read as zeros without a signal, so the size is
// asked again after the copy. Faults that are not ours go to the handler that was there before.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <mutex>

#include "reader.hpp"

namespace penstock {
namespace {

struct Guard {
  sigjmp_buf back;
  const std::byte* from = nullptr;
  const std::byte* to = nullptr;
};

thread_local Guard* volatile active_guard = nullptr;
struct sigaction previous_action;

void on_bus_error(int signal, siginfo_t* info, void* context) {
  Guard* guard = active_guard;
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  if (guard != nullptr && address >= guard->from && address < guard->to) {
    active_guard = nullptr;
    siglongjmp(guard->back, 1);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // Restore the default; returning runs the faulting instruction again, which now ends the
    // process as it would have without us.
    ::sigaction(SIGBUS, &previous_action, nullptr);
  }
}

// Others (faulthandler, sanitizers) install handlers at any time, so ours is checked before each
// use: one cheap system call for many extents.
void install_handler() {
  static std::mutex mutex;
  struct sigaction current {};
  ::sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_bus_error) return;
  const std::lock_guard lock(mutex);
  ::sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_bus_error) return;
  previous_action = current;
  struct sigaction ours {};
  ours.sa_sigaction = on_bus_error;
  // NODEFER: leaving by siglongjmp must not leave the signal blocked.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, &ours, nullptr);
}

// Asks for the first lines of an extent while the one before is being copied.
void prefetch(const std::byte* from, std::int64_t length) {
  const auto* at = reinterpret_cast<const char*>(from);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(length, 512); i += 64) {
    __builtin_prefetch(at + i);
  }
}

// Copies extents [first, last), all of one file and inside its map; returns the extent whose page
// could not be had, or last. No object with a destructor may live here: a fault jumps out.
std::size_t copy_guarded(const Mapped& mapped, const Extent* extents, std::size_t first,
                         std::size_t last) {
  Guard guard;
  guard.from = mapped.data;
  guard.to = mapped.data + mapped.size;
  volatile std::size_t current = first;
  if (sigsetjmp(guard.back, 0) != 0) return current;
  active_guard = &guard;
  for (std::size_t i = first; i < last; ++i) {
    current = i;
    if (i + 1 < last) prefetch(mapped.data + extents[i + 1].offset, extents[i + 1].length);
    std::memcpy(extents[i].target, mapped.data + extents[i].offset,
                static_cast<std::size_t>(extents[i].length));
  }
  active_guard = nullptr;
  return last;
}

class MappedReader final : public Reader {
 public:
  MappedReader(Files& files, Completions& completions) : files_(files), completions_(completions) {}

  void read(const TicketPtr& ticket, std::size_t first_run, std::size_t last_run) override {
    install_handler();
    const auto& extents = ticket->extents;
    const std::size_t last = ticket->runs[last_run];
    for (std::size_t i = ticket->runs[first_run]; i < last;) {
      std::size_t next = i + 1;
      while (next < last && extents[next].file == extents[i].file) ++next;
      copy(*ticket, i, next);
      i = next;
    }
    completions_.ended(ticket, last_run - first_run);
  }

 private:
  // Extents [first, last) are of one file.
  void copy(Ticket& ticket, std::size_t first, std::size_t last) {
    const Extent* extents = ticket.extents.data();
    Mapped mapped = files_.map(extents[first].file);
    if (mapped.error != 0) {
      for (std::size_t i = first; i < last; ++i) ticket.fail(i, mapped.error, 0);
      return;
    }
    const auto size = static_cast<std::int64_t>(mapped.size);
    std::int64_t reached = 0;
    for (std::size_t i = first; i < last;) {
      std::size_t inside = i;  // the extents up to here lie inside the map
      while (inside < last && extents[inside].offset + extents[inside].length <= size) {
        reached = std::max(reached, extents[inside].offset + extents[inside].length);
        ++inside;
      }
      i = copy_guarded(mapped, extents, i, inside);
      if (i < inside) {
        ++i;  // its page is gone; the check of the size below reports it
      } else if (i < last) {
        copy_head(mapped, ticket, i++, size);
      }
    }
    check_size(mapped, ticket, first, last, std::min(reached, size));
    files_.release(mapped);
  }

  // An extent that reaches beyond the indexed end of the file: what there is of it arrives.
  static void copy_head(const Mapped& mapped, Ticket& ticket, std::size_t i, std::int64_t size) {
    Extent head = ticket.extents[i];
    head.length = std::clamp<std::int64_t>(size - head.offset, 0, head.length);
    if (head.length > 0) copy_guarded(mapped, &head, 0, 1);
    ticket.fail(i, 0, head.length);
  }

  static void check_size(const Mapped& mapped, Ticket& ticket, std::size_t first, std::size_t last,
                         std::int64_t reached) {
    struct stat info {};
    const int error = ::fstat(mapped.fd, &info) == 0 ? 0 : errno;
    const auto indexed = static_cast<std::int64_t>(mapped.size);
    if (error == 0 && info.st_size >= reached) return;
    for (std::size_t i = first; i < last; ++i) {
      const Extent& extent = ticket.extents[i];
      const std::int64_t end = extent.offset + extent.length;
      if (end > indexed || (error == 0 && end <= info.st_size)) continue;
      const std::int64_t left = error == 0 ? info.st_size - extent.offset : 0;
      ticket.fail(i, error, std::clamp<std::int64_t>(left, 0, extent.length));
    }
  }

  Files& files_;
  Completions& completions_;
};

}  // namespace

std::unique_ptr<Reader> make_mapped_reader(Files& files, Completions& completions) {
  return std::make_unique<MappedReader>(files, completions);
}

}  // namespace penstock
