// The layout of LMDB's metas, databases and pages, and the set of pages of a file that were
// reached.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock::lmdb {

static_assert(std::endian::native == std::endian::little, "fields are loaded as they lie");

inline constexpr std::uint32_t magic = 0xBEEFC0DE;
inline constexpr std::uint64_t no_page = ~std::uint64_t{0};
inline constexpr std::uint64_t meta_bytes = 136;
inline constexpr std::uint64_t record_bytes = 48;  // of a database, in a meta or in a leaf
inline constexpr std::uint64_t node_bytes = 8;     // a node's header
inline constexpr unsigned depth_max = 32;

// Page types; other flags (dirty, loose) say nothing about a page on disk.
inline constexpr unsigned branch_page = 1, leaf_page = 2, overflow_page = 4, meta_page = 8;
inline constexpr unsigned page_types =
    branch_page | leaf_page | overflow_page | meta_page | 0x20 | 0x40;
// Flags of databases.
inline constexpr unsigned reverse_key = 2, dup_sort = 4, integer_key = 8,
                          dup_flags = 0x10 | 0x20 | 0x40;
// Flags of nodes.
inline constexpr unsigned big_data = 1, sub_data = 2, dup_data = 4;

template <typename T>
inline T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

struct Database {
  std::uint32_t pad;
  unsigned flags, depth;
  std::uint64_t branches, leaves, overflows, entries, root;

  static Database at(const std::byte* p) {
    return {load<std::uint32_t>(p),      load<std::uint16_t>(p + 4),  load<std::uint16_t>(p + 6),
            load<std::uint64_t>(p + 8),  load<std::uint64_t>(p + 16), load<std::uint64_t>(p + 24),
            load<std::uint64_t>(p + 32), load<std::uint64_t>(p + 40)};
  }
};

struct Meta {
  std::uint64_t slot;  // number of the page that it stands on
  std::uint32_t version;
  unsigned environment;
  std::uint64_t page_bytes, last_page, txnid;
  Database main;

  static Meta at(std::uint64_t slot, const std::byte* p) {
    const Database free = Database::at(p + 24);
    return {slot,
            load<std::uint32_t>(p + 4),
            free.flags,
            free.pad,
            load<std::uint64_t>(p + 120),
            load<std::uint64_t>(p + 128),
            Database::at(p + 72)};
  }
};

// The layout of the pages of one file. Positions in a page are relative to `base`.
struct Geometry {
  std::uint64_t page_bytes = 0, header = 16, base = 0, last_page = 0, txnid = 0, pages = 0;
  std::uint32_t version = 0;

  std::uint64_t at(std::uint64_t page) const { return page * page_bytes; }
  std::uint64_t numbered(const std::byte* p) const { return load<std::uint64_t>(p); }
  unsigned flags(const std::byte* p) const { return load<std::uint16_t>(p + header - 6); }
  std::uint64_t lower(const std::byte* p) const { return load<std::uint16_t>(p + header - 4); }
  std::uint64_t upper(const std::byte* p) const { return load<std::uint16_t>(p + header - 2); }
  std::uint64_t run(const std::byte* p) const { return load<std::uint32_t>(p + header - 4); }
  std::uint64_t pages_of(std::uint64_t length) const {
    return (header - 1 + length) / page_bytes + 1;
  }
};

// The set of pages that were reached. Threads mark concurrently; a page is marked once.
class Reached {
 public:
  explicit Reached(std::uint64_t pages) : words_((pages + 63) / 64) {}

  bool mark(std::uint64_t page) {
    const std::uint64_t bit = std::uint64_t{1} << (page % 64);
    return (words_[page / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
  }
  bool mark(std::uint64_t page, std::uint64_t count) {
    for (; count > 0 && page % 64 != 0; ++page, --count)
      if (!mark(page)) return false;
    for (; count >= 64; page += 64, count -= 64)
      if (words_[page / 64].exchange(~std::uint64_t{0}, std::memory_order_relaxed) != 0)
        return false;
    for (; count > 0; ++page, --count)
      if (!mark(page)) return false;
    return true;
  }

 private:
  std::vector<std::atomic<std::uint64_t>> words_;
};

}  // namespace penstock::lmdb
