#include "engine/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace penstock {
namespace {

constexpr std::size_t huge_page = 2u << 20;
constexpr std::size_t page = 4096;

// A block serves requests down to half its size; larger blocks would be wasted on small batches.
constexpr std::size_t oversize_max = 2;

// A block may be rounded up to a whole number of huge pages if it is so small a part of the bound.
constexpr std::size_t huge_part = 16;

// Sizes of eight steps to the doubling: at most an eighth is lost, and ragged batches, whose sizes
// vary, find their blocks again. Where the bound has much room, blocks from half a huge page on are
// whole huge pages: batches that are written and read through small ones take a sixth longer.
std::size_t round_up(std::size_t bytes, std::size_t bytes_max) {
  std::size_t unit = std::max(page, std::bit_floor(bytes) / 8);
  if (bytes >= huge_page / 2 && bytes + huge_page <= bytes_max / huge_part) {
    unit = std::max(unit, huge_page);
  }
  return (bytes + unit - 1) / unit * unit;
}

std::byte* allocate(std::size_t capacity) {
  // Huge pages only form at multiples of their size: take more and return the edges.
  const std::size_t extra = capacity >= huge_page ? huge_page : 0;
  void* raw = ::mmap(nullptr, capacity + extra, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(raw);
  if (extra != 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    const std::size_t skip = (huge_page - address % huge_page) % huge_page;
    if (skip != 0) ::munmap(begin, skip);
    if (skip != extra) ::munmap(begin + skip + capacity, extra - skip);
    begin += skip;
    ::madvise(begin, capacity, MADV_HUGEPAGE);
  }
#ifdef MADV_POPULATE_WRITE
  if (::madvise(begin, capacity, MADV_POPULATE_WRITE) == 0) return begin;
#endif
  std::memset(begin, 0, capacity);
  return begin;
}

}  // namespace

Block::Block(Block&& other) noexcept
    : arena_(std::move(other.arena_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(other.capacity_) {}

Block::~Block() {
  if (data_ != nullptr) arena_->give_back({data_, capacity_});
}

Arena::~Arena() {
  for (const Piece& piece : kept_) ::munmap(piece.data, piece.capacity);
}

// The lock may have been held at the fork by a thread that is not here.
bool Arena::is_inherited() const { return count_forks() != owner_; }

Block Arena::take(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(PTRDIFF_MAX) / 2) throw std::bad_alloc();  // sums below fit
  bytes = std::max<std::size_t>(bytes, 1);
  if (is_inherited()) {
    const std::size_t whole = round_up(bytes, 0);
    return {shared_from_this(), allocate(whole), whole};
  }
  std::size_t capacity = 0;
  {
    const std::lock_guard lock(mutex_);
    capacity = round_up(bytes, bytes_max_);
    if (const std::size_t i = find_kept(bytes, capacity); i < kept_.size()) {
      const Piece piece = kept_[i];
      Block block = lend(piece);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= piece.capacity;
      return block;
    }
  }
  const Piece piece{allocate(capacity), capacity};
  const std::lock_guard lock(mutex_);
  free_kept();
  try {
    kept_.reserve(kept_.size() + lent_blocks_ + 1);  // now: giving back must not fail
    return lend(piece);
  } catch (const std::bad_alloc&) {
    ::munmap(piece.data, piece.capacity);
    throw;
  }
}

std::size_t Arena::prepare(std::size_t bytes, std::size_t blocks) noexcept {
  if (is_inherited() || bytes > static_cast<std::size_t>(PTRDIFF_MAX) / 2) return 0;
  for (std::size_t made = 0; made < blocks; ++made) {
    Piece piece{};
    {
      const std::lock_guard lock(mutex_);
      piece.capacity = round_up(std::max<std::size_t>(bytes, 1), bytes_max_);
      if (ahead_bytes_ + kept_bytes_ + piece.capacity > bytes_max_) return made;
    }
    try {
      piece.data = allocate(piece.capacity);
      const std::lock_guard lock(mutex_);
      if (keep(piece)) continue;
    } catch (const std::bad_alloc&) {
    }
    if (piece.data != nullptr) ::munmap(piece.data, piece.capacity);
    return made;
  }
  return blocks;
}

// Keep a block if the bound has room for it besides what is lent and kept.
bool Arena::keep(Piece piece) {
  if (ahead_bytes_ + kept_bytes_ + piece.capacity > bytes_max_) return false;
  kept_.reserve(kept_.size() + lent_blocks_ + 1);  // giving back must not fail
  kept_.push_back(piece);
  kept_bytes_ += piece.capacity;
  return true;
}

// The smallest kept piece that serves, the latest one back among equals; else kept_.size(). Not the
// first that serves: small batches would take the large batches' pieces, which then are made anew.
std::size_t Arena::find_kept(std::size_t bytes, std::size_t capacity) const {
  std::size_t best = kept_.size();
  for (std::size_t i = kept_.size(); i-- > 0;) {
    const std::size_t have = kept_[i].capacity;
    if (have < bytes || have / oversize_max > capacity) continue;
    if (best == kept_.size() || have < kept_[best].capacity) best = i;
    if (have == capacity) break;
  }
  return best;
}

Block Arena::lend(Piece piece) {
  ahead_.emplace(piece.data, piece.capacity);
  ahead_bytes_ += piece.capacity;
  lent_bytes_ += piece.capacity;
  ++lent_blocks_;
  return {shared_from_this(), piece.data, piece.capacity};
}

// True if what is lent and kept is above the bound, or what is kept with the incoming block.
bool Arena::is_above(std::size_t incoming_bytes) const {
  return ahead_bytes_ + kept_bytes_ > bytes_max_ || kept_bytes_ + incoming_bytes > bytes_max_;
}

// Free the oldest kept blocks until that is no longer so.
void Arena::free_kept(std::size_t incoming_bytes) {
  std::size_t freed = 0;
  for (; freed < kept_.size() && is_above(incoming_bytes); ++freed) {
    kept_bytes_ -= kept_[freed].capacity;
    ::munmap(kept_[freed].data, kept_[freed].capacity);
  }
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(freed));
}

void Arena::hand_over(const std::byte* data) noexcept {
  if (is_inherited()) return;
  const std::lock_guard lock(mutex_);
  if (const std::size_t bytes = take_from_ahead(data); bytes != 0) latest_bytes_ = bytes;
}

// With the lock; the bytes of the block, 0 if it is not ahead.
std::size_t Arena::take_from_ahead(const std::byte* data) noexcept {
  const auto found = ahead_.find(data);
  if (found == ahead_.end()) return 0;
  const std::size_t bytes = found->second;
  ahead_bytes_ -= bytes;
  ahead_.erase(found);
  return bytes;
}

void Arena::give_back(Piece piece) noexcept {
  if (is_inherited()) {
    ::munmap(piece.data, piece.capacity);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    --lent_blocks_;
    lent_bytes_ -= piece.capacity;
    take_from_ahead(piece.data);
    free_kept(piece.capacity);
    if (!is_above(piece.capacity)) {
      kept_.push_back(piece);
      kept_bytes_ += piece.capacity;
      return;
    }
  }
  ::munmap(piece.data, piece.capacity);
}

void Arena::set_bytes_max(std::size_t bytes_max) {
  if (is_inherited()) return;
  const std::lock_guard lock(mutex_);
  bytes_max_ = bytes_max;
  free_kept();
}

// One of the counters; 0 in a forked child, which owns none of the blocks.
std::size_t Arena::count(const std::size_t& bytes) const {
  if (is_inherited()) return 0;
  const std::lock_guard lock(mutex_);
  return bytes;
}

bool Arena::has_room(const std::vector<std::size_t>& blocks, std::int64_t reserved_bytes) const {
  if (is_inherited()) return true;
  const std::lock_guard lock(mutex_);
  const auto most = static_cast<std::int64_t>(bytes_max_);
  const std::size_t handed = lent_bytes_ - ahead_bytes_;
  const std::size_t older = handed - std::min(handed, latest_bytes_);
  std::int64_t bytes = static_cast<std::int64_t>(ahead_bytes_ + std::min(older, latest_bytes_)) +
                       reserved_bytes;
  for (const std::size_t each : blocks) {
    if (each > bytes_max_ || bytes > most) return false;  // so that no sum overflows
    bytes += static_cast<std::int64_t>(round_up(each, bytes_max_));
  }
  return bytes <= most;
}

std::size_t Arena::bytes_max() const { return count(bytes_max_); }

std::size_t Arena::kept_bytes() const { return count(kept_bytes_); }

std::size_t Arena::lent_bytes() const { return count(lent_bytes_); }

std::size_t Arena::ahead_bytes() const { return count(ahead_bytes_); }

}  // namespace penstock
