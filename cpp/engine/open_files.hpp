// The descriptors of data that all engines of a process have open: one exact allowance, the least
// recently used closed first.
//
// A kept file is pinned while it is read. Only files that nobody reads are closed, so a reader whose
// file was closed opens it again, and sees nothing of it but the time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace penstock {

class CheckedFiles;

// A descriptor that may be kept open, with the number of its users: both in one word, so that no
// user can come between finding it idle and closing it.
class KeptDescriptor {
 public:
  // The descriptor, pinned; -1 if none is kept.
  int pin() {
    const std::uint64_t before = state_.fetch_add(one_pin, std::memory_order_acq_rel);
    const int fd = descriptor(before);
    if (fd < 0) unpin();
    return fd;
  }
  void unpin() { state_.fetch_sub(one_pin, std::memory_order_acq_rel); }
  // Keep a descriptor and pin it. One thread at a time, and only while none is kept.
  void keep(int fd) {
    state_.fetch_add(one_pin + static_cast<std::uint64_t>(fd) + 1, std::memory_order_acq_rel);
  }
  // Give up the descriptor and return it; -1 if there is none, or it is pinned.
  int take_idle() {
    std::uint64_t state = state_.load(std::memory_order_acquire);
    const int fd = descriptor(state);
    if (fd < 0 || state >= one_pin) return -1;
    return state_.compare_exchange_strong(state, 0, std::memory_order_acq_rel) ? fd : -1;
  }
  bool is_kept() const { return descriptor(state_.load(std::memory_order_acquire)) >= 0; }

 private:
  static constexpr std::uint64_t one_pin = std::uint64_t{1} << 32;
  static int descriptor(std::uint64_t state) { return static_cast<int>(state & (one_pin - 1)) - 1; }
  std::atomic<std::uint64_t> state_{0};
};

// Room for one more open file: none, room for a file that may be kept, or for one that its reader
// closes.
enum class Room : std::uint8_t { none, kept, lent };

class OpenFiles {
 public:
  // That of this process. A forked child gets one of its own: locks of its parent's may be held.
  static OpenFiles& of_process();

  void add(CheckedFiles* files);
  void remove(CheckedFiles* files);

  // Take room before a file is opened, so that never more are open than are allowed; if all is
  // taken, idle files are closed, the least recently used first. `kept` room is for every file; a
  // reader that has no file open is given `lent` room beyond it. Files that are kept can be in the
  // hands of other readers from one read to the next, for ever: of room that every reader took for
  // any number of files, others might never find any. A lent file is closed after its read, so room
  // for a first file comes back as soon as reads end.
  Room take_room(bool is_first);
  // Return room after the file was closed, or was not opened.
  void return_room() { open_.fetch_sub(1, std::memory_order_acq_rel); }
  std::ptrdiff_t open_count() const { return open_.load(std::memory_order_acquire); }

  // Close some idle files, the least recently used first; false if there are none, or those that
  // there are cannot be closed without waiting.
  bool close_idle();

 private:
  explicit OpenFiles(pid_t owner) : owner_(owner) {}
  std::ptrdiff_t allowance();
  bool take_below(std::ptrdiff_t bound);

  const pid_t owner_;
  std::mutex mutex_;  // locked before any mutex of CheckedFiles
  std::vector<CheckedFiles*> files_;
  std::atomic<std::ptrdiff_t> open_{0};  // files that are open, or about to be
  std::atomic<std::ptrdiff_t> allowance_{0};
  std::atomic<std::int64_t> allowance_read_{-1};  // tick of the coarse clock
};

}  // namespace penstock
