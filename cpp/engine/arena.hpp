// Batch memory: taken from the system once, touched once, recycled.
//
// Fresh memory is slow at its first touch (0.2 to 2 GB/s on virtual machines), so blocks that come
// back are kept, and the latest one back goes out first, while caches hold it. The block that the
// user got last does not count, nor do those that are collected. The others, lent or kept, take no
// more than the bound and one block, as long as those that are lent keep within it: what is kept
// makes room for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ground/forks.hpp"

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
  explicit Arena(std::size_t bytes_max) : bytes_max_(bytes_max) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A page-aligned, touched block of at least `bytes`. Throws std::bad_alloc.
  Block take(std::size_t bytes);
  // Allocate up to so many blocks of this size to keep, while the bound has room for them: the next
  // `take` finds them. For a thread of its own, as memory is touched. Returns how many; none throws.
  std::size_t prepare(std::size_t bytes, std::size_t blocks) noexcept;
  // Count the block that begins here as the user's from now on, if it is lent by this arena.
  void hand_over(const std::byte* data) noexcept;
  // Change the bound; kept blocks above it are freed at once.
  void set_bytes_max(std::size_t bytes_max);
  std::size_t bytes_max() const;
  // True if blocks of these sizes, and the reserved bytes, fit the bound besides what is lent and
  // not handed over, and one block that the user has from before the last: a loop drops it once it
  // has the next. Fewer than 0 bytes are reserved where some of that does not count.
  bool has_room(const std::vector<std::size_t>& blocks, std::int64_t reserved_bytes) const;
  std::size_t kept_bytes() const;
  std::size_t lent_bytes() const;   // the user's included
  std::size_t ahead_bytes() const;  // of those, not handed over

 private:
  friend class Block;
  struct Piece {
    std::byte* data;
    std::size_t capacity;
  };
  bool is_inherited() const;
  std::size_t find_kept(std::size_t bytes, std::size_t capacity) const;
  std::size_t count(const std::size_t& bytes) const;
  // With the lock:
  Block lend(Piece piece);
  bool is_above(std::size_t incoming_bytes) const;
  void free_kept(std::size_t incoming_bytes = 0);
  bool keep(Piece piece);
  std::size_t take_from_ahead(const std::byte* data) noexcept;

  void give_back(Piece piece) noexcept;

  // A forked child has copies of the blocks: it returns them to the system and allocates new ones.
  const std::uint32_t owner_ = count_forks();
  std::size_t bytes_max_;
  mutable std::mutex mutex_;
  std::vector<Piece> kept_;  // the oldest first
  std::unordered_map<const std::byte*, std::size_t> ahead_;  // lent and not handed over
  std::size_t kept_bytes_ = 0;
  std::size_t lent_bytes_ = 0;
  std::size_t ahead_bytes_ = 0;
  std::size_t latest_bytes_ = 0;  // of the block that was handed over last
  std::size_t lent_blocks_ = 0;
};

}  // namespace penstock
