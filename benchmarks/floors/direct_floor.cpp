// Floor for cold random records: O_DIRECT through a raw io_uring, a fixed number of reads in flight,
// each into one of as many recycled buffers. A finished buffer is touched and used for the next
// record at once; there is no batch to wait for, which only makes the floor harder to reach.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "protocol.hpp"

namespace {

constexpr std::size_t alignment_bytes = 4096;

template <class Value>
Value* at(void* base, std::size_t offset) {
  return reinterpret_cast<Value*>(static_cast<std::uint8_t*>(base) + offset);
}

class Uring {
 public:
  explicit Uring(unsigned depth) {
    io_uring_params params{};
    // Completions are only reaped inside enter(), by the one thread that submits.
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    ring_ = static_cast<int>(::syscall(SYS_io_uring_setup, depth, &params));
    if (ring_ < 0) floors::fail("io_uring_setup");
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0)
      throw std::runtime_error("io_uring without IORING_FEAT_SINGLE_MMAP");
    const std::size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const std::size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    void* rings = map(std::max(sq_bytes, cq_bytes), IORING_OFF_SQ_RING);
    entries_ = static_cast<io_uring_sqe*>(
        map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    sq_tail_ = at<unsigned>(rings, params.sq_off.tail);
    sq_mask_ = *at<unsigned>(rings, params.sq_off.ring_mask);
    sq_array_ = at<unsigned>(rings, params.sq_off.array);
    cq_head_ = at<unsigned>(rings, params.cq_off.head);
    cq_tail_ = at<unsigned>(rings, params.cq_off.tail);
    cq_mask_ = *at<unsigned>(rings, params.cq_off.ring_mask);
    completions_ = at<io_uring_cqe>(rings, params.cq_off.cqes);
  }

  void fix(int file, const std::vector<iovec>& buffers) {
    const auto count = static_cast<unsigned>(buffers.size());
    if (::syscall(SYS_io_uring_register, ring_, IORING_REGISTER_BUFFERS, buffers.data(), count) < 0)
      floors::fail("io_uring_register buffers");
    if (::syscall(SYS_io_uring_register, ring_, IORING_REGISTER_FILES, &file, 1) < 0)
      floors::fail("io_uring_register files");
    fixed_ = true;
  }

  void read(int file, const iovec& buffer, std::uint64_t offset, unsigned slot) {
    const unsigned tail = *sq_tail_;
    const unsigned index = tail & sq_mask_;
    io_uring_sqe& entry = entries_[index];
    entry = io_uring_sqe{};
    entry.opcode = fixed_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.flags = fixed_ ? IOSQE_FIXED_FILE : 0;
    entry.fd = fixed_ ? 0 : file;
    entry.off = offset;
    entry.addr = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    entry.len = static_cast<unsigned>(buffer.iov_len);
    entry.buf_index = static_cast<std::uint16_t>(fixed_ ? slot : 0);
    entry.user_data = slot;
    sq_array_[index] = index;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++pending_;
  }

  // Submits what is pending, waits for one completion, hands every finished slot to `done`.
  template <class Done>
  void reap(Done&& done) {
    const long entered = ::syscall(SYS_io_uring_enter, ring_, pending_, 1, IORING_ENTER_GETEVENTS,
                                   nullptr, 0);
    if (entered < 0) floors::fail("io_uring_enter");
    pending_ -= static_cast<unsigned>(entered);
    unsigned head = *cq_head_;
    const unsigned tail = std::atomic_ref(*cq_tail_).load(std::memory_order_acquire);
    for (; head != tail; ++head) {
      const io_uring_cqe& completion = completions_[head & cq_mask_];
      done(static_cast<unsigned>(completion.user_data), completion.res);
    }
    std::atomic_ref(*cq_head_).store(head, std::memory_order_release);
  }

 private:
  void* map(std::size_t bytes, off_t offset) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_,
                           offset);
    if (address == MAP_FAILED) floors::fail("mmap of the ring");
    return address;
  }

  int ring_ = -1;
  bool fixed_ = false;
  unsigned pending_ = 0;
  io_uring_sqe* entries_ = nullptr;
  unsigned* sq_tail_ = nullptr;
  unsigned* sq_array_ = nullptr;
  unsigned* cq_head_ = nullptr;
  unsigned* cq_tail_ = nullptr;
  io_uring_cqe* completions_ = nullptr;
  unsigned sq_mask_ = 0;
  unsigned cq_mask_ = 0;
};

std::vector<iovec> take_buffers(unsigned depth, std::size_t bytes) {
  void* arena = std::aligned_alloc(alignment_bytes, depth * bytes);
  if (arena == nullptr) throw std::bad_alloc();
  std::memset(arena, 1, depth * bytes);
  std::vector<iovec> buffers;
  for (unsigned slot = 0; slot < depth; ++slot)
    buffers.push_back({at<std::uint8_t>(arena, slot * bytes), bytes});
  return buffers;
}

}  // namespace

int main(int argc, char** argv) {
  return floors::guarded([&] {
    const floors::Arguments arguments(argc, argv);
    const std::size_t record_bytes = arguments.number("record-bytes");
    const auto depth = static_cast<unsigned>(arguments.number("depth"));
    const int file = ::open(arguments.text("path").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || ::fstat(file, &status) != 0) floors::fail(arguments.text("path"));

    const std::vector<iovec> buffers = take_buffers(depth, record_bytes);
    Uring ring(depth);
    if (arguments.text("buffers") == "fixed") ring.fix(file, buffers);
    floors::Orders orders(static_cast<std::size_t>(status.st_size) / record_bytes,
                          arguments.number("seed"));

    floors::serve([&](bool every_byte) {
      const auto& order = orders.next();
      floors::Epoch epoch;
      std::size_t next = 0;
      const auto submit = [&](unsigned slot) {
        ring.read(file, buffers[slot], std::uint64_t{order[next++]} * record_bytes, slot);
      };
      for (unsigned slot = 0; slot < depth && next < order.size(); ++slot) submit(slot);
      while (epoch.samples < order.size())
        ring.reap([&](unsigned slot, int result) {
          if (result != static_cast<int>(record_bytes))
            throw std::runtime_error("a read returned " + std::to_string(result));
          const auto* data = static_cast<const std::uint8_t*>(buffers[slot].iov_base);
          epoch.sum += floors::touch(data, record_bytes, every_byte);
          ++epoch.samples;
          if (next < order.size()) submit(slot);
        });
      return epoch;
    });
  });
}
