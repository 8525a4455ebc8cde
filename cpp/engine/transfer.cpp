#include "engine/transfer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace penstock {
namespace {

constexpr std::int64_t call_bytes_max = 0x7ffff000;  // the kernel's own limit for one read
constexpr std::size_t parts_max = 1024;              // IOV_MAX
constexpr std::size_t sink_bytes = 64 << 10;
constexpr unsigned refusals_max = 1000;  // EINTR and EAGAIN in a row, beyond which they are errors
constexpr std::int64_t offset_max = std::numeric_limits<std::int64_t>::max();

// Target of bytes between extents; one per thread, so that threads do not contend for its cache
// lines.
std::byte* sink() {
  thread_local std::unique_ptr<std::byte[]> bytes;
  if (!bytes) bytes = std::make_unique_for_overwrite<std::byte[]>(sink_bytes);
  return bytes.get();
}

std::int64_t round_down(std::int64_t value, std::size_t alignment) {
  return value - value % static_cast<std::int64_t>(alignment);
}

// No file reaches the last block before 2^63, where this would be beyond.
std::int64_t round_up(std::int64_t value, std::size_t alignment) {
  const auto step = static_cast<std::int64_t>(alignment);
  return round_down(value > offset_max - step ? offset_max : value + step - 1, alignment);
}

}  // namespace

bool Bounce::reserve(std::size_t bytes) {
  if (bytes <= size_) return true;
  memory_.reset();
  size_ = std::min(size_max, (bytes + sink_bytes - 1) / sink_bytes * sink_bytes);
  void* memory = std::aligned_alloc(alignment_max, size_);
  if (memory == nullptr) size_ = 0;
  memory_.reset(static_cast<std::byte*>(memory));
  return memory != nullptr;
}

void Bounce::Free::operator()(std::byte* p) const { std::free(p); }

void Transfer::begin(CheckedFiles& files, TicketPtr ticket, std::size_t run, Access access,
                     bool may_wait) {
  ticket_ = std::move(ticket);
  run_ = run;
  error_ = 0;
  const auto extents = ticket_->run(run_);
  position_ = extents.front().offset;
  end_ = extents.back().offset + extents.back().length;
  goal_ = end_;
  refusals_ = 0;
  one_by_one_ = false;
  opened_ = files.open(extents.front().file, access, may_wait);
  if (opened_.fd < 0) {
    error_ = opened_.error;
    return;
  }
  alignment_ = opened_.direct ? opened_.alignment : 1;
  bounced_ = opened_.direct && position_ < end_ && !is_straight();
  if (!begin_parts()) error_ = ENOMEM;
}

bool Transfer::lacks_descriptor() const { return is_shortage(error_); }

// Reserve the memory that the calls will need; false if there is none.
bool Transfer::begin_parts() try {
  if (bounced_) {
    parts_.reserve(1);
    const std::int64_t bytes = bounce_bytes(round_down(position_, alignment_));
    return bounce_.reserve(static_cast<std::size_t>(bytes));
  }
  const auto extents = ticket_->run(run_);
  std::size_t parts = 1;
  if (extents.size() > 1) {
    parts = 2 * extents.size() + static_cast<std::size_t>(end_ - position_) / sink_bytes;
    sink();
  }
  parts_.reserve(std::min(parts, parts_max));
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// Bytes that one aligned read from an aligned offset covers.
std::int64_t Transfer::bounce_bytes(std::int64_t from) const {
  return std::min<std::int64_t>(round_up(goal_, alignment_) - from,
                                static_cast<std::int64_t>(Bounce::size_max));
}

bool Transfer::is_straight() const {
  const auto extents = ticket_->run(run_);
  const auto aligned = [this](std::uint64_t value) { return value % alignment_ == 0; };
  return extents.size() == 1 && aligned(static_cast<std::uint64_t>(extents[0].offset)) &&
         aligned(static_cast<std::uint64_t>(extents[0].length)) &&
         aligned(reinterpret_cast<std::uintptr_t>(extents[0].target));
}

Transfer::ReadCall Transfer::prepare_read() {
  parts_.clear();
  call_offset_ = position_;
  if (bounced_) {
    call_offset_ = round_down(position_, alignment_);
    const std::int64_t bytes = bounce_bytes(call_offset_);
    parts_.push_back({bounce_.data(), static_cast<std::size_t>(bytes)});
  } else {
    gather_parts();
  }
  return {call_offset_, parts_.data(), static_cast<unsigned>(parts_.size())};
}

bool Transfer::read() {
  const ReadCall wanted = prepare_read();
  if (wanted.count == 0) return accept(0);
  const ssize_t result =
      wanted.count == 1
          ? ::pread(fd(), wanted.parts->iov_base, wanted.parts->iov_len, wanted.offset)
          : ::preadv(fd(), wanted.parts, static_cast<int>(wanted.count), wanted.offset);
  return accept(result < 0 ? -errno : result);
}

// Collect the destinations from position_ on, with the sink for the gaps between them.
void Transfer::gather_parts() {
  std::int64_t at = position_;
  std::int64_t room = call_bytes_max;
  const auto add = [&](std::byte* to, std::int64_t bytes) {
    bytes = std::min(bytes, room);
    parts_.push_back({to, static_cast<std::size_t>(bytes)});
    at += bytes;
    room -= bytes;
  };
  for (const Extent& extent : ticket_->run(run_)) {
    if (at >= goal_) return;
    while (at < extent.offset && room > 0 && parts_.size() < parts_max) {
      add(sink(), std::min<std::int64_t>(extent.offset - at, sink_bytes));
    }
    const std::int64_t end = extent.offset + extent.length;
    if (at < end && room > 0 && parts_.size() < parts_max) {
      add(extent.target + (at - extent.offset), end - at);
    }
    if (room == 0 || parts_.size() == parts_max) return;
  }
}

bool Transfer::accept(std::int64_t result) {
  if ((result == -EINTR || result == -EAGAIN) && ++refusals_ < refusals_max) return false;
  if (result < 0) return handle_error(static_cast<int>(-result));
  const std::int64_t reached = call_offset_ + result;
  if (reached <= position_) {  // no progress: the end of the file, or less than a block
    if (result == 0 || is_at_file_end()) return true;
    return ++refusals_ < refusals_max ? false : handle_error(EIO);
  }
  refusals_ = 0;
  if (bounced_) scatter(call_offset_, result);
  position_ = std::min(reached, goal_);
  if (position_ == end_) return true;
  if (position_ == goal_) return advance_extent();
  if (opened_.direct && !bounced_ && position_ % static_cast<std::int64_t>(alignment_) != 0) {
    bounced_ = true;  // cut short in the middle of a block: the rest is not aligned any more
    if (!begin_parts()) error_ = ENOMEM;
  }
  return error_ != 0;
}

bool Transfer::is_at_file_end() const {
  struct stat info {};
  return ::fstat(fd(), &info) == 0 && info.st_size <= position_;
}

// Handle an error at position_ of the current call. True when the run has ended.
bool Transfer::handle_error(int error) {
  if (position_ == end_) return true;  // no bytes were wanted
  const auto extents = ticket_->run(run_);
  if (extents.size() == 1) {
    error_ = error;
    return true;
  }
  refusals_ = 0;
  if (!one_by_one_) {  // start again at the extent that position_ has come to
    one_by_one_ = true;
    current_ = 0;
    while (extents[current_].offset + extents[current_].length <= position_) ++current_;
    position_ = std::max(position_, extents[current_].offset);
    goal_ = extents[current_].offset + extents[current_].length;
    return false;
  }
  ticket_->fail(ticket_->runs[run_] + current_, error, position_ - extents[current_].offset);
  return advance_extent();
}

// Advance to the next extent that has bytes. True if there is none.
bool Transfer::advance_extent() {
  const auto extents = ticket_->run(run_);
  do {
    ++current_;
  } while (current_ < extents.size() && extents[current_].length == 0);
  position_ = current_ < extents.size() ? extents[current_].offset : end_;
  goal_ = current_ < extents.size() ? position_ + extents[current_].length : end_;
  return current_ == extents.size();
}

void Transfer::scatter(std::int64_t begin, std::int64_t bytes) {
  const std::int64_t finish = begin + bytes;
  for (const Extent& extent : ticket_->run(run_)) {
    const std::int64_t from = std::max({begin, position_, extent.offset});
    const std::int64_t to = std::min(finish, extent.offset + extent.length);
    if (from < to) {
      std::memcpy(extent.target + (from - extent.offset), bounce_.data() + (from - begin),
                  static_cast<std::size_t>(to - from));
    }
  }
}

TicketPtr Transfer::finish(CheckedFiles& files) {
  const bool started = opened_.fd >= 0;
  if (error_ != 0 || position_ < end_) {
    for (std::size_t i = ticket_->runs[run_]; i < ticket_->runs[run_ + 1]; ++i) {
      const Extent& extent = ticket_->extents[i];
      const std::int64_t got =
          started ? std::clamp<std::int64_t>(position_ - extent.offset, 0, extent.length) : 0;
      if (got < extent.length || !started) ticket_->fail(i, error_, got);
    }
  }
  files.release(opened_);
  return std::move(ticket_);
}

}  // namespace penstock
