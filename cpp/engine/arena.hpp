// Batch memory: taken from the system once, touched once, recycled.
//
// Fresh memory is slow at its first touch (0.2 to 2 GB/s on virtual machines), so blocks that come
// back are kept, up to a bound, and the latest one back goes out first, while caches hold it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock {

class Arena;

// Memory on loan; returns to its arena when destroyed. The arena lives as long as its blocks.
class Block {
 public:
  Block() = default;
  Block(std::shared_ptr<Arena> arena, std::byte* data, std::size_t capacity)
      : arena_(std::move(arena)), data_(data), capacity_(capacity) {}
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&&) = delete;

  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Keeps up to `kept_bytes_max` of returned blocks.
  explicit Arena(std::size_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A page-aligned, touched block of at least `bytes`. Throws std::bad_alloc.
  Block take(std::size_t bytes);
  std::size_t kept_bytes() const;
  std::size_t lent_bytes() const;

 private:
  friend class Block;
  struct Piece {
    std::byte* data;
    std::size_t capacity;
  };
  bool is_inherited() const;
  std::size_t find_kept(std::size_t bytes, std::size_t capacity) const;
  Block lend(Piece piece);  // with the lock
  void give_back(Piece piece) noexcept;

  // A forked child has copies of the blocks: it returns them to the system and allocates new ones.
  const pid_t owner_ = ::getpid();
  const std::size_t kept_bytes_max_;
  mutable std::mutex mutex_;
  std::vector<Piece> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t lent_bytes_ = 0;
  std::size_t lent_blocks_ = 0;
};

}  // namespace penstock
