#include "transfer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "limits.hpp"

namespace penstock {
namespace {

constexpr std::int64_t call_bytes_max = 0x7ffff000;  // the kernel's own limit for one read
constexpr std::size_t parts_max = 1024;              // IOV_MAX
constexpr std::size_t page = 4096;
constexpr std::size_t sink_bytes = 64 << 10;

// Bytes nobody wants. Written by every thread, read by none.
std::byte* sink() {
  alignas(page) static std::array<std::byte, sink_bytes> bytes;
  return bytes.data();
}

std::int64_t down(std::int64_t value, std::size_t alignment) {
  return value - value % static_cast<std::int64_t>(alignment);
}

std::int64_t up(std::int64_t value, std::size_t alignment) {
  return down(value + static_cast<std::int64_t>(alignment) - 1, alignment);
}

}  // namespace

std::size_t Bounce::size_max() { return limits::run_bytes_max + 2 * page; }

bool Bounce::reserve(std::size_t bytes) {
  if (bytes <= size_) return true;
  memory_.reset();
  size_ = std::min(size_max(), (bytes + sink_bytes - 1) / sink_bytes * sink_bytes);
  void* memory = std::aligned_alloc(page, size_);
  if (memory == nullptr) size_ = 0;
  memory_.reset(static_cast<std::byte*>(memory));
  return memory != nullptr;
}

void Bounce::Free::operator()(std::byte* p) const { std::free(p); }

void Transfer::begin(Files& files, TicketPtr ticket, std::size_t run, Access access) {
  ticket_ = std::move(ticket);
  run_ = run;
  error_ = 0;
  const auto extents = ticket_->run(run_);
  position_ = extents.front().offset;
  end_ = extents.back().offset + extents.back().length;
  opened_ = files.open(extents.front().file, access);
  if (opened_.fd < 0) {
    error_ = opened_.error;
    return;
  }
  alignment_ = opened_.direct ? files.alignment() : 1;
  bounced_ = opened_.direct && !straight();
  if (bounced_ && !bounce_.reserve(static_cast<std::size_t>(bounce_bytes(down(position_, alignment_))))) {
    error_ = ENOMEM;
  }
}

// How much one aligned read from an aligned offset covers.
std::int64_t Transfer::bounce_bytes(std::int64_t from) const {
  return std::min<std::int64_t>(up(end_, alignment_) - from,
                                static_cast<std::int64_t>(Bounce::size_max()));
}

bool Transfer::straight() const {
  const auto extents = ticket_->run(run_);
  const auto aligned = [this](std::uint64_t value) { return value % alignment_ == 0; };
  return extents.size() == 1 && aligned(static_cast<std::uint64_t>(extents[0].offset)) &&
         aligned(static_cast<std::uint64_t>(extents[0].length)) &&
         aligned(reinterpret_cast<std::uintptr_t>(extents[0].target));
}

Transfer::Ask Transfer::ask() {
  parts_.clear();
  asked_ = position_;
  if (bounced_) {
    asked_ = down(position_, alignment_);
    const std::int64_t bytes = bounce_bytes(asked_);
    parts_.push_back({bounce_.data(), static_cast<std::size_t>(bytes)});
  } else {
    gather_parts();
  }
  return {asked_, parts_.data(), static_cast<unsigned>(parts_.size())};
}

// The destinations from position_ on, with the sink for what lies between them.
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

bool Transfer::arrived(std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    error_ = static_cast<int>(-result);
    return true;
  }
  const std::int64_t reached = asked_ + result;
  if (reached <= position_) return true;  // the end of the file
  if (bounced_) scatter(asked_, result);
  position_ = std::min(reached, end_);
  return position_ == end_;
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

TicketPtr Transfer::end(Files& files) {
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
