#include "engine/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace penstock {
namespace {

constexpr std::size_t huge_page = 2u << 20;
constexpr std::size_t small_unit = 64u << 10;

// A block serves requests down to half its size; larger blocks would be wasted on small batches.
constexpr std::size_t oversize_max = 2;

// An eighth more than asked, so that ragged batches, whose sizes vary, find their blocks again.
std::size_t round_up(std::size_t bytes) {
  const std::size_t unit = bytes >= huge_page / 2 ? huge_page : small_unit;
  const std::size_t wanted = bytes + (bytes > huge_page ? bytes / 8 : 0);
  return (wanted + unit - 1) / unit * unit;
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
bool Arena::is_inherited() const { return ::getpid() != owner_; }

Block Arena::take(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(PTRDIFF_MAX) / 2) throw std::bad_alloc();  // sums below fit
  bytes = std::max<std::size_t>(bytes, 1);
  const std::size_t capacity = round_up(bytes);
  if (is_inherited()) return {shared_from_this(), allocate(capacity), capacity};
  {
    const std::lock_guard lock(mutex_);
    if (const std::size_t i = find_kept(bytes, capacity); i < kept_.size()) {
      const Piece piece = kept_[i];
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= piece.capacity;
      return lend(piece);
    }
  }
  const Piece piece{allocate(capacity), capacity};
  const std::lock_guard lock(mutex_);
  try {
    kept_.reserve(kept_.size() + lent_blocks_ + 1);  // now: giving back must not fail
  } catch (const std::bad_alloc&) {
    ::munmap(piece.data, piece.capacity);
    throw;
  }
  return lend(piece);
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
  ++lent_blocks_;
  lent_bytes_ += piece.capacity;
  return {shared_from_this(), piece.data, piece.capacity};
}

void Arena::give_back(Piece piece) noexcept {
  if (is_inherited() || piece.capacity > kept_bytes_max_) ::munmap(piece.data, piece.capacity);
  if (is_inherited()) return;
  std::unique_lock lock(mutex_);
  --lent_blocks_;
  lent_bytes_ -= piece.capacity;
  if (piece.capacity > kept_bytes_max_) return;
  kept_.push_back(piece);
  kept_bytes_ += piece.capacity;
  while (kept_bytes_ > kept_bytes_max_) {
    const Piece oldest = kept_.front();
    kept_bytes_ -= oldest.capacity;
    kept_.erase(kept_.begin());
    lock.unlock();
    ::munmap(oldest.data, oldest.capacity);
    lock.lock();
  }
}

std::size_t Arena::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::size_t Arena::lent_bytes() const {
  const std::lock_guard lock(mutex_);
  return lent_bytes_;
}

}  // namespace penstock
