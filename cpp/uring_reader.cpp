// Reads by io_uring: many runs in flight from one thread.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "limits.hpp"
#include "reader.hpp"
#include "ring.hpp"
#include "transfer.hpp"

namespace penstock {
namespace {

class UringReader final : public Reader {
 public:
  UringReader(std::unique_ptr<Ring> ring, Files& files, Completions& completions, Access access)
      : ring_(std::move(ring)), files_(files), completions_(completions), access_(access) {
    for (std::size_t slot = 0; slot < transfers_.size(); ++slot) free_.push_back(slot);
  }

  void read(const TicketPtr& ticket, std::size_t first, std::size_t last) override {
    for (std::size_t run = first; run < last; ++run) {
      while (free_.empty()) progress();
      const std::size_t slot = free_.back();
      transfers_[slot].begin(files_, ticket, run, access_);
      if (transfers_[slot].ready()) {
        free_.pop_back();
        push(slot);
      } else {
        completions_.ended(transfers_[slot].end(files_), 1);
      }
    }
    submit(0);
    reap();
  }

  bool busy() const override { return free_.size() < transfers_.size(); }

  void progress() override {
    submit(1);
    reap();
  }

 private:
  void push(std::size_t slot) {
    const auto ask = transfers_[slot].ask();
    // A lone part is a plain read: no iovec for the kernel to copy in.
    if (ask.count == 1) {
      ring_->push(IORING_OP_READ, transfers_[slot].fd(), ask.parts->iov_base,
                  static_cast<std::uint32_t>(ask.parts->iov_len), ask.offset, slot);
    } else {
      ring_->push(IORING_OP_READV, transfers_[slot].fd(), ask.parts, ask.count, ask.offset, slot);
    }
  }

  void submit(unsigned events_min) {
    // Nothing but a defect of ours makes the kernel refuse the ring itself at this point, and
    // buffers may be in its hands: there is no safe way on.
    if (ring_->enter(events_min) != 0) std::abort();
  }

  void reap() {
    Event event;
    TicketPtr latest;  // count down once for the many runs of one ticket that end together
    std::size_t ended = 0;
    while (ring_->pop(event)) {
      const auto slot = static_cast<std::size_t>(event.tag);
      if (!transfers_[slot].arrived(event.result)) {
        push(slot);
        continue;
      }
      TicketPtr ticket = transfers_[slot].end(files_);
      free_.push_back(slot);
      if (ticket != latest) {
        if (ended > 0) completions_.ended(latest, ended);
        latest = std::move(ticket);
        ended = 0;
      }
      ++ended;
    }
    if (ended > 0) completions_.ended(latest, ended);
  }

  std::unique_ptr<Ring> ring_;
  Files& files_;
  Completions& completions_;
  Access access_;
  std::array<Transfer, limits::ring_entries> transfers_;
  std::vector<std::size_t> free_;
};

}  // namespace

std::unique_ptr<Reader> make_uring_reader(Files& files, Completions& completions, Access access,
                                          int& error) {
  auto ring = Ring::make(limits::ring_entries, error);
  if (!ring) return nullptr;
  return std::make_unique<UringReader>(std::move(ring), files, completions, access);
}

}  // namespace penstock
