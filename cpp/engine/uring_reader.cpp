// Reads by io_uring: many runs in flight from one thread.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "ground/limits.hpp"
#include "engine/reader.hpp"
#include "engine/ring.hpp"
#include "engine/transfer.hpp"

namespace penstock {
namespace {

class UringReader final : public Reader {
 public:
  UringReader(std::unique_ptr<Ring> ring, CheckedFiles& files, RunObserver& observer)
      : ring_(std::move(ring)), files_(files), observer_(observer) {
    for (std::size_t slot = 0; slot < transfers_.size(); ++slot) free_.push_back(slot);
  }

  void read(const TicketPtr& ticket, std::size_t first, std::size_t last,
            Access access) override {
    for (std::size_t run = first; run < last; ++run) {
      std::size_t slot = 0;
      for (;;) {
        while (free_.empty()) progress();
        slot = free_.back();
        transfers_[slot].begin(files_, ticket, run, access, !is_busy());
        if (!transfers_[slot].lacks_descriptor() || !is_busy()) break;
        progress();  // a read that ends lets its file be closed
      }
      if (transfers_[slot].is_ready()) {
        free_.pop_back();
        push(slot);
      } else {
        observer_.finish_runs(transfers_[slot].finish(files_), 1);
      }
    }
    submit(0);
    reap();
  }

  bool is_busy() const override { return free_.size() < transfers_.size(); }

  void progress() override {
    submit(1);
    reap();
  }

 private:
  void push(std::size_t slot) {
    const auto ask = transfers_[slot].prepare_read();
    // A lone part is a plain read: no iovec for the kernel to copy in.
    if (ask.count == 1) {
      ring_->push(IORING_OP_READ, transfers_[slot].fd(), ask.parts->iov_base,
                  static_cast<std::uint32_t>(ask.parts->iov_len), ask.offset, slot);
    } else {
      ring_->push(IORING_OP_READV, transfers_[slot].fd(), ask.parts, ask.count, ask.offset, slot);
    }
  }

  void submit(unsigned events_min) {
    const int error = ring_->enter(events_min);
    if (error == 0) return;
    // For any reason of refusal: reads that the kernel has not taken can be done without the ring.
    if (in_kernel() == 0) return read_by_call();
    const bool short_of_room = error == EAGAIN || error == EBUSY;  // an event frees some
    if (short_of_room && ring_->wait(1) == 0) return;
    // The ring is gone (a descriptor closed by others?) while the kernel may write to buffers:
    // there is no safe way to continue.
    std::fprintf(stderr, "penstock: io_uring_enter: %s\n", std::strerror(error));
    std::abort();
  }

  std::size_t in_kernel() const { return transfers_.size() - free_.size() - ring_->queued(); }

  void read_by_call() {
    while (ring_->queued() > 0) {
      const auto slot = static_cast<std::size_t>(ring_->withdraw());
      while (!transfers_[slot].read()) {
      }
      finish(slot);
    }
    report();
  }

  void reap() {
    Event event;
    while (ring_->pop(event)) {
      const auto slot = static_cast<std::size_t>(event.tag);
      if (transfers_[slot].accept(event.result)) {
        finish(slot);
      } else {
        push(slot);
      }
    }
    report();
  }

  // Count down once for the many runs of one ticket that end together.
  void finish(std::size_t slot) {
    TicketPtr ticket = transfers_[slot].finish(files_);
    free_.push_back(slot);
    if (ticket != latest_) {
      report();
      latest_ = std::move(ticket);
    }
    ++latest_ended_;
  }

  void report() {
    if (latest_ended_ > 0) observer_.finish_runs(latest_, latest_ended_);
    latest_ended_ = 0;
    latest_.reset();
  }

  std::unique_ptr<Ring> ring_;
  CheckedFiles& files_;
  RunObserver& observer_;
  std::array<Transfer, limits::ring_entries> transfers_;
  std::vector<std::size_t> free_;
  TicketPtr latest_;
  std::size_t latest_ended_ = 0;  // runs of it that are not reported
};

}  // namespace

std::unique_ptr<Reader> make_uring_reader(CheckedFiles& files, RunObserver& observer, int& error) {
  auto ring = Ring::make(limits::ring_entries, error);
  if (!ring) return nullptr;
  return std::make_unique<UringReader>(std::move(ring), files, observer);
}

}  // namespace penstock
