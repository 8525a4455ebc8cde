// Batches dealt to threads, copied into recycled buffers: what the buffered floors share.
#pragma once

#include <thread>

#include "protocol.hpp"

namespace floors {

// One thread's ring of batch buffers, touched once at the start and used again and again. A loader
// keeps a few batches in flight; a single buffer would stay in the first-level caches and flatter
// the floor's reader.
class Ring {
 public:
  Ring(std::size_t buffers, std::size_t bytes) {
    while (buffers_.size() < buffers) buffers_.emplace_back(bytes);
  }
  std::uint8_t* next() { return buffers_[turn_++ % buffers_.size()].data(); }

 private:
  std::vector<Pages> buffers_;
  std::size_t turn_ = 0;
};

constexpr std::size_t ring_buffers = 4;

class Batches {
 public:
  Batches(std::size_t count, std::size_t sample_bytes, std::size_t batch, std::size_t threads,
          std::uint64_t seed)
      : sample_bytes_(sample_bytes), batch_(batch), orders_(count, seed) {
    for (std::size_t thread = 0; thread < threads; ++thread)
      rings_.emplace_back(ring_buffers, batch * sample_bytes);
  }

  // `read(sample, row)` fills one row. Thread t takes the batches t, t + threads, ...
  template <class Read>
  Epoch run(bool every_byte, Read&& read) {
    const auto& order = orders_.next();
    std::vector<Epoch> parts(rings_.size());
    const auto work = [&](std::size_t thread) {
      parts[thread] = deliver(order, thread, every_byte, read);
    };
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < rings_.size(); ++thread)
      others.emplace_back(work, thread);
    work(0);
    others.clear();
    Epoch total;
    for (const auto& part : parts) total += part;
    return total;
  }

 private:
  template <class Read>
  Epoch deliver(const std::vector<std::uint32_t>& order, std::size_t thread, bool every_byte,
                Read& read) {
    Epoch part;
    const std::size_t stride = rings_.size() * batch_;
    for (std::size_t from = thread * batch_; from < order.size(); from += stride) {
      std::uint8_t* rows = rings_[thread].next();
      const std::size_t size = std::min(batch_, order.size() - from);
      for (std::size_t row = 0; row < size; ++row)
        read(order[from + row], rows + row * sample_bytes_);
      for (std::size_t row = 0; row < size; ++row)
        part.sum += touch(rows + row * sample_bytes_, sample_bytes_, every_byte);
      part.samples += size;
    }
    return part;
  }

  std::size_t sample_bytes_;
  std::size_t batch_;
  Orders orders_;
  std::vector<Ring> rings_;
};

}  // namespace floors
