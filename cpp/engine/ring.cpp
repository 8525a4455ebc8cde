#include "engine/ring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

// Younger than some distributions' headers; the kernel refuses what it does not know.
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

namespace penstock {
namespace {

int setup(unsigned entries, io_uring_params& params) {
  return static_cast<int>(::syscall(__NR_io_uring_setup, entries, &params));
}

template <class T>
T* at(void* base, std::uint32_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(base) + offset);
}

}  // namespace

std::unique_ptr<Ring> Ring::make(unsigned entries, int& error) {
  std::unique_ptr<Ring> ring(new Ring);
  error = ring->map(entries);
  if (error != 0) return nullptr;
  return ring;
}

int Ring::map(unsigned entries) {
  // Completions run when this thread asks for them (fewest interrupts); older kernels know less.
  const std::array<std::uint32_t, 3> tries = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0};
  io_uring_params params{};
  for (const std::uint32_t flags : tries) {
    params = {};
    params.flags = flags;
    fd_ = setup(entries, params);
    if (fd_ >= 0 || errno != EINVAL) break;
  }
  if (fd_ < 0) return errno;
  // Before Linux 5.6: no IORING_OP_READ, which came with the latter.
  constexpr std::uint32_t needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
  if ((params.features & needed) != needed) return ENOSYS;

  rings_bytes_ = std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(std::uint32_t),
                                       params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  rings_ = ::mmap(nullptr, rings_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                  IORING_OFF_SQ_RING);
  if (rings_ == MAP_FAILED) {
    rings_ = nullptr;
    return errno;
  }
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  entries_ = ::mmap(nullptr, entries_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                    IORING_OFF_SQES);
  if (entries_ == MAP_FAILED) {
    entries_ = nullptr;
    return errno;
  }
  sq_tail_ = at<std::uint32_t>(rings_, params.sq_off.tail);
  sq_mask_ = *at<std::uint32_t>(rings_, params.sq_off.ring_mask);
  sq_array_ = at<std::uint32_t>(rings_, params.sq_off.array);
  cq_head_ = at<std::uint32_t>(rings_, params.cq_off.head);
  cq_tail_ = at<std::uint32_t>(rings_, params.cq_off.tail);
  cq_mask_ = *at<std::uint32_t>(rings_, params.cq_off.ring_mask);
  cqes_ = at<io_uring_cqe>(rings_, params.cq_off.cqes);
  return 0;
}

Ring::~Ring() {
  if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void Ring::push(std::uint8_t opcode, int fd, const void* address, std::uint32_t length,
                std::int64_t offset, std::uint64_t tag) {
  const std::uint32_t tail = *sq_tail_;  // only this thread writes it
  const std::uint32_t slot = tail & sq_mask_;
  io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[slot];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = opcode;
  entry.fd = fd;
  entry.addr = reinterpret_cast<std::uintptr_t>(address);
  entry.len = length;
  entry.off = static_cast<std::uint64_t>(offset);
  entry.user_data = tag;
  sq_array_[slot] = slot;
  std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
  ++queued_;
}

int Ring::call(unsigned submit, unsigned events_min) {
  for (;;) {
    const long taken = ::syscall(__NR_io_uring_enter, fd_, submit, events_min,
                                 IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken >= 0) {
      queued_ -= static_cast<unsigned>(taken);
      return 0;
    }
    if (errno != EINTR) return errno;
  }
}

int Ring::enter(unsigned events_min) { return call(queued_, events_min); }

int Ring::wait(unsigned events_min) { return call(0, events_min); }

std::uint64_t Ring::withdraw() {
  const std::uint32_t tail = *sq_tail_ - 1;  // the kernel looks at it in `enter` only
  std::atomic_ref(*sq_tail_).store(tail, std::memory_order_release);
  --queued_;
  return static_cast<const io_uring_sqe*>(entries_)[tail & sq_mask_].user_data;
}

bool Ring::pop(Event& event) {
  const std::uint32_t head = *cq_head_;  // only this thread writes it
  if (head == std::atomic_ref(*cq_tail_).load(std::memory_order_acquire)) return false;
  const io_uring_cqe& entry = cqes_[head & cq_mask_];
  event = {entry.user_data, entry.res};
  std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
  return true;
}

}  // namespace penstock
