// One io_uring by raw system calls. Belongs to the thread that made it.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock {

struct Event {
  std::uint64_t tag;
  std::int32_t result;
};

class Ring {
 public:
  // Null if the kernel refuses; `error` is then its errno.
  static std::unique_ptr<Ring> make(unsigned entries, int& error);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Queue a read; the caller never has more than `entries` between push and pop.
  void push(std::uint8_t opcode, int fd, const void* address, std::uint32_t length,
            std::int64_t offset, std::uint64_t tag);
  // Hand the queued entries to the kernel and wait for `events_min` events. Returns 0 or errno:
  // EAGAIN or EBUSY if the kernel is short of memory or its queue is full, and it took nothing.
  int enter(unsigned events_min);
  // Wait for events, and hand nothing over.
  int wait(unsigned events_min);
  // Take back the latest entry that was pushed and not handed over, and return its tag.
  std::uint64_t withdraw();
  bool pop(Event& event);
  unsigned queued() const { return queued_; }

 private:
  Ring() = default;
  int map(unsigned entries);
  int call(unsigned submit, unsigned events_min);

  int fd_ = -1;
  void* rings_ = nullptr;
  std::size_t rings_bytes_ = 0;
  void* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  std::uint32_t* sq_tail_ = nullptr;
  std::uint32_t sq_mask_ = 0;
  std::uint32_t* sq_array_ = nullptr;
  std::uint32_t* cq_head_ = nullptr;
  std::uint32_t* cq_tail_ = nullptr;
  std::uint32_t cq_mask_ = 0;
  const io_uring_cqe* cqes_ = nullptr;
  unsigned queued_ = 0;
};

}  // namespace penstock
