#include "index/walk_lmdb.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "index/caffe_datum.hpp"
#include "index/lmdb_layout.hpp"
#include "ground/parallel.hpp"

namespace penstock::lmdb {
namespace {

// Bounds of one read: near pages are read together, with the pages between them.
constexpr std::uint64_t run_bytes = 1 << 20, run_pages = 512, gap_pages = 8;
constexpr std::size_t values_at_once = 256;  // values whose headers one job compares
constexpr unsigned verify_threads = 16;      // each waits for the disk most of the time

std::string number(std::uint64_t n) { return std::to_string(n); }

std::string quote(std::string_view key) {
  std::string shown = "'";
  for (const char c : key.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (key.size() > 40 ? "...'" : "'");
}

struct Record {
  std::uint64_t offset;
  std::uint32_t length, key_bytes;
};

// A value on pages of its own.
struct Big {
  std::uint64_t page, least, claimed, node;  // claimed: number of pages that the leaf gives, or 0
};

struct Named {
  std::string name;
  std::uint64_t offset;
  Database database;
};

// Contents of the pages of one run, in file order.
struct Staged {
  std::vector<std::uint64_t> children;
  std::vector<Record> records;
  std::vector<char> keys;
  std::vector<Big> bigs;
  std::vector<Named> named;
  std::uint64_t entries = 0;
};

// The part of one page in a Staged.
struct Slice {
  std::uint32_t run, first, count, key_first, key_bytes;
};

struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<char> keys;
};

struct Level {
  std::vector<Staged> runs;
  std::vector<Slice> slices;  // by position, which is key order
};

class Walker {
 public:
  Walker(Source& source, const Options& options, Walk& out)
      : source_(source), options_(options), out_(out) {
    const unsigned there = std::max(1u, std::thread::hardware_concurrency());
    threads_ = !options.concurrent ? 1 : options.threads ? options.threads : std::min(there, 8u);
  }

  void walk();

 private:
  bool read(std::uint64_t offset, std::span<std::byte> to);
  bool read_geometry();
  bool is_foreign(const std::byte* head, std::size_t length);
  bool read_metas(const std::byte* head);
  bool read_meta(const std::byte* page, std::uint64_t length, std::uint64_t which, Meta& found);

  bool walk_tree(const Database& database, std::uint64_t offset, bool main);
  bool is_plausible(const Database& database, std::uint64_t offset);
  bool read_level(const std::vector<std::uint64_t>& pages, bool leaves, Level& found);
  bool check_page(std::uint64_t number, std::uint64_t type, const std::byte* p, ParseError& error) const;
  bool read_branch(std::uint64_t page, const std::byte* p, Staged& to, ParseError& error);
  bool read_leaf(std::uint64_t page, const std::byte* p, Staged& to, Scratch& scratch,
            std::uint64_t& key_bytes, ParseError& error);
  bool read_special(std::uint64_t page, const std::byte* p, std::uint64_t node, std::uint64_t payload,
               Record& record, Staged& to, ParseError& error);
  bool is_ascending(std::string_view before, std::string_view key) const;
  bool is_excluded(std::string_view key) const;
  bool verify(std::vector<Big>& bigs, std::uint64_t& overflows);
  bool join_records(Level& leaves);
  void sort_by_offset();

  bool refuse(std::uint64_t offset, std::string message) {
    out_.parse_error = ParseError{offset, std::move(message)};
    return false;
  }
  bool take_errors(JobErrors& job_errors) {
    if (!job_errors.has_any()) return true;
    out_.parse_error = std::move(job_errors.parse_error);
    out_.read_error = job_errors.read_error;
    return false;
  }

  Source& source_;
  const Options& options_;
  Walk& out_;
  unsigned threads_;
  Geometry g_;
  Meta live_{};
  std::optional<Reached> reached_;
  // State of the tree that is being walked:
  unsigned flags_ = 0;
  bool main_ = false;
  bool names_only_ = false;
  std::vector<Named> named_;
};

bool Walker::read(std::uint64_t offset, std::span<std::byte> to) {
  const std::int64_t got = source_.read(offset, to);
  if (got < 0) {
    out_.read_error = static_cast<int>(-got);
    return false;
  }
  if (static_cast<std::uint64_t>(got) < to.size())
    return refuse(
        offset + static_cast<std::uint64_t>(got),
        "the file ends here, within what its pages refer to: it is cut off, copy it again");
  return true;
}

// -- metas
// -----------------------------------------------------------------------------------------

// True if the file is none that can be read; out_.parse_error then describes it.
bool Walker::is_foreign(const std::byte* head, std::size_t length) {
  constexpr std::uint32_t swapped = 0xDEC0EFBE;
  for (const std::size_t at : {12u, 16u, 24u}) {
    if (length < at + 8) break;
    const auto word = load<std::uint32_t>(head + at);
    const auto version = load<std::uint32_t>(head + at + 4);
    if (word == swapped)
      refuse(at,
             "an LMDB environment of a big-endian machine: `mdb_dump` it there and "
             "`mdb_load` it here");
    else if (word != magic)
      continue;
    else if (version == 999)
      refuse(at + 4,
             "an LMDB environment of a developer build (data version 999): write it with "
             "a release of LMDB");
    else if (at == 12 || (at == 16 && (version == 2 || version == 3)))
      refuse(at,
             "an LMDB environment of a 32-bit build: `mdb_dump` it there and `mdb_load` it "
             "here");
    else if (at == 16 ? version != 1 : version != 2 && version != 3)
      refuse(at + 4, "an LMDB environment of data version " + number(version) +
                         ", and versions 1, 2 and 3 can be read");
    else {
      g_.version = version;
      g_.header = at;
      g_.base = at == 16 ? 0 : at;
      return false;
    }
    return true;
  }
  refuse(0, "not an LMDB environment: the first meta page has no magic number");
  return true;
}

bool Walker::read_geometry() {
  std::vector<std::byte> head(std::min<std::uint64_t>(source_.size, 4096));
  if (!read(0, head)) return false;
  if (is_foreign(head.data(), head.size())) return false;
  if (head.size() < g_.header + meta_bytes)
    return refuse(source_.size, "the file ends within its first meta page: copy it again");
  return read_metas(head.data());
}

bool Walker::read_meta(const std::byte* page, std::uint64_t offset, std::uint64_t which, Meta& found) {
  const std::byte* p = page + g_.header;
  const std::string name = "meta page " + number(which);
  if (load<std::uint32_t>(p) != magic)
    return refuse(offset + g_.header, name + " has no magic number: it is damaged");
  found = Meta::at(which, p);
  if (found.version != g_.version)
    return refuse(offset + g_.header + 4, name + " has data version " + number(found.version) +
                                              ", and the other has " + number(g_.version));
  if ((g_.flags(page) & page_types) != meta_page)
    return refuse(offset + g_.header - 6, name + " is not marked as a meta page");
  if (g_.numbered(page) != which)
    return refuse(offset, name + " carries the number " + number(g_.numbered(page)));
  const std::uint64_t most = g_.version == 1 ? 32768 : 65536;
  if (!std::has_single_bit(found.page_bytes) || found.page_bytes < 512 || found.page_bytes > most)
    return refuse(offset + g_.header + 24, name + " says pages of " + number(found.page_bytes) +
                                               " bytes, which is no power of two from 512 to " +
                                               number(most));
  if (g_.version > 1 && (found.environment & 0x2000) != 0)
    return refuse(offset + g_.header + 28,
                  "the environment is encrypted: write it again without encryption");
  return true;
}

bool Walker::read_metas(const std::byte* head) {
  Meta first{}, second{};
  if (!read_meta(head, 0, 0, first)) return false;
  g_.page_bytes = first.page_bytes;
  std::vector<std::byte> page(g_.header + meta_bytes);
  if (source_.size < g_.page_bytes + page.size())
    return refuse(source_.size, "the file ends before its second meta page: copy it again");
  if (!read(g_.page_bytes, page)) return false;
  if (!read_meta(page.data(), g_.page_bytes, 1, second)) return false;
  if (second.page_bytes != first.page_bytes)
    return refuse(g_.page_bytes + g_.header + 24,
                  "the second meta page says pages of " + number(second.page_bytes) +
                      " bytes, and the first " + number(first.page_bytes));
  live_ = second.txnid > first.txnid ? second : first;
  g_.last_page = live_.last_page;
  g_.txnid = live_.txnid;
  g_.pages = source_.size / g_.page_bytes;
  out_.page_bytes = g_.page_bytes;
  out_.version = g_.version;
  out_.txnid = g_.txnid;
  return true;
}

// -- pages
// -----------------------------------------------------------------------------------------

// The checks that every page of a tree has to pass before anything else of it is read.
bool Walker::check_page(std::uint64_t number_, std::uint64_t type, const std::byte* p, ParseError& error) const {
  const std::uint64_t offset = g_.at(number_);
  const auto fail = [&](std::uint64_t at, std::string message) {
    error = {offset + at, "page " + number(number_) + " " + std::move(message)};
    return false;
  };
  if (g_.numbered(p) != number_) return fail(0, "carries the number " + number(g_.numbered(p)));
  const unsigned flags = g_.flags(p) & page_types;
  if (flags != type)
    return fail(g_.header - 6, "has type " + number(flags) + " where " + number(type) +
                                    " is due (1 branch, 2 leaf): it is damaged, or the tree's "
                                    "depth is wrong");
  const std::uint64_t lower = g_.lower(p), upper = g_.upper(p);
  if (lower < g_.header - g_.base || lower > upper || upper > g_.page_bytes - g_.base ||
      lower % 2 != 0)
    return fail(g_.header - 4, "has impossible bounds of free space (" + number(lower) + ", " +
                                    number(upper) + ")");
  if (g_.version > 1 && load<std::uint64_t>(p + 8) > g_.txnid)
    return fail(8, "was written by transaction " + number(load<std::uint64_t>(p + 8)) +
                        ", and the last commit is " + number(g_.txnid));
  return true;
}

bool Walker::read_branch(std::uint64_t page, const std::byte* p, Staged& to, ParseError& error) {
  const auto fail = [&](std::uint64_t at, std::string message) {
    error = {g_.at(page) + at, "branch page " + number(page) + " " + std::move(message)};
    return false;
  };
  const std::uint64_t count = (g_.lower(p) - (g_.header - g_.base)) / 2;
  const std::uint64_t upper = g_.upper(p) + g_.base;
  if (count == 0) return fail(g_.header, "has no children");
  std::uint64_t used = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t pointer = g_.header + 2 * i;
    const std::uint64_t node = load<std::uint16_t>(p + pointer) + g_.base;
    if (node < upper || node > g_.page_bytes - node_bytes)
      return fail(pointer, "points to a node at " + number(node) + ", outside of its nodes");
    const std::uint64_t key_bytes = load<std::uint16_t>(p + node + 6);
    if (key_bytes > g_.page_bytes - node - node_bytes)
      return fail(node + 6, "has a key of " + number(key_bytes) + " bytes, beyond its end");
    used += (node_bytes + key_bytes + 1) & ~std::uint64_t{1};
    const std::uint64_t child = load<std::uint16_t>(p + node) |
                                std::uint64_t{load<std::uint16_t>(p + node + 2)} << 16 |
                                std::uint64_t{load<std::uint16_t>(p + node + 4)} << 32;
    if (child < 2 || child > g_.last_page || child >= g_.pages)
      return fail(node, "has the child " + number(child) + ", and the pages are 2 to " +
                             number(std::min(g_.last_page, g_.pages - 1)));
    if (!reached_->mark(child))
      return fail(node, "has the child " + number(child) + ", which another page has as well");
    to.children.push_back(child);
  }
  if (used > g_.page_bytes - upper) return fail(g_.header, "has nodes that overlap");
  return true;
}

bool Walker::is_ascending(std::string_view before, std::string_view key) const {
  if ((flags_ & integer_key) != 0) {
    if (before.size() != key.size()) return false;
    const auto as_bytes = [](std::string_view k) {
      return reinterpret_cast<const std::byte*>(k.data());
    };
    return key.size() == 4
               ? load<std::uint32_t>(as_bytes(before)) < load<std::uint32_t>(as_bytes(key))
               : load<std::uint64_t>(as_bytes(before)) < load<std::uint64_t>(as_bytes(key));
  }
  if ((flags_ & reverse_key) != 0)
    return std::lexicographical_compare(
        before.rbegin(), before.rend(), key.rbegin(), key.rend(), [](char a, char b) {
          return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
        });
  return before < key;  // bytes compare as unsigned here
}

bool Walker::is_excluded(std::string_view key) const {
  return std::find(options_.exclude.begin(), options_.exclude.end(), key) != options_.exclude.end();
}

// A node whose payload is not the value itself.
bool Walker::read_special(std::uint64_t page, const std::byte* p, std::uint64_t node,
                     std::uint64_t payload, Record& record, Staged& to, ParseError& error) {
  const unsigned flags = load<std::uint16_t>(p + node + 4);
  const std::uint64_t offset = g_.at(page) + node;
  const auto fail = [&](std::string message) {
    error = {offset, "leaf page " + number(page) + " " + std::move(message)};
    return false;
  };
  if (flags == sub_data) {
    if (!main_) return fail("of a named database holds another database");
    if (record.length != record_bytes)
      return fail("has a database record of " + number(record.length) + " bytes");
    const auto* key = reinterpret_cast<const char*>(p + node + node_bytes);
    std::string name(key, record.key_bytes);
    if (g_.version == 3 && name.ends_with('\0')) name.pop_back();  // LMDB 1.0 writes it as well
    to.named.push_back({std::move(name), g_.at(page) + payload, Database::at(p + payload)});
    return true;
  }
  if (flags != big_data) {
    if ((flags & dup_data) != 0)
      return fail("has several values for a key, in a database without them");
    return fail("has a node with the unknown flags " + number(flags));
  }
  Big big{load<std::uint64_t>(p + payload), g_.pages_of(record.length), 0, offset};
  if (g_.version > 1) {
    big.claimed = load<std::uint64_t>(p + payload + 16);
    if (big.claimed < big.least)
      return fail("has a value of " + number(record.length) + " bytes on " + number(big.claimed) +
                   " pages, and it needs " + number(big.least));
  }
  const std::uint64_t pages = std::max(big.least, big.claimed);
  if (big.page < 2 || big.page > g_.last_page || pages > g_.last_page - big.page + 1)
    return fail("has a value of " + number(record.length) + " bytes from page " +
                 number(big.page) + " on, beyond the last page " + number(g_.last_page));
  if (big.page >= g_.pages || g_.header + record.length > source_.size - g_.at(big.page))
    return fail("has a value of " + number(record.length) + " bytes from page " +
                 number(big.page) + " on, beyond the end of the file (" + number(source_.size) +
                 " bytes)");
  const std::uint64_t there =
      std::min(pages, (source_.size + g_.page_bytes - 1) / g_.page_bytes - big.page);
  if (!reached_->mark(big.page, there))
    return fail("has a value on page " + number(big.page) + ", which something else has as well");
  record.offset = g_.at(big.page) + g_.header;
  to.bigs.push_back(big);
  return true;
}

bool Walker::read_leaf(std::uint64_t page, const std::byte* p, Staged& to, Scratch& scratch,
                  std::uint64_t& key_end, ParseError& error) {
  const auto fail = [&](std::uint64_t at, std::string message) {
    error = {g_.at(page) + at, "leaf page " + number(page) + " " + std::move(message)};
    return false;
  };
  const std::uint64_t count = (g_.lower(p) - (g_.header - g_.base)) / 2;
  const std::uint64_t upper = g_.upper(p) + g_.base, end = g_.page_bytes;
  const std::uint64_t even = g_.version == 3 ? 1 : 0;
  const unsigned order = flags_ & (integer_key | reverse_key);
  std::uint64_t used = 0;
  std::string_view before;
  // Room for all keys of a page, which no more nodes than fit into it can have.
  if (scratch.keys.size() < key_end + end) scratch.keys.resize(key_end + end + scratch.keys.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t pointer = g_.header + 2 * i;
    const std::uint64_t node = load<std::uint16_t>(p + pointer) + g_.base;
    if (node < upper || node > end - node_bytes || node % 2 != 0)
      return fail(pointer, "points to a node at " + number(node) + ", outside of its nodes");
    const auto head = load<std::uint64_t>(p + node);
    const std::uint64_t key_bytes = head >> 48;
    const auto flags = static_cast<unsigned>(head >> 32 & 0xffff);
    const std::uint64_t payload = node + node_bytes + ((key_bytes + even) & ~even);
    if (payload > end)
      return fail(node + 6, "has a key of " + number(key_bytes) + " bytes, beyond its end");
    Record record{g_.at(page) + payload, static_cast<std::uint32_t>(head),
                  static_cast<std::uint32_t>(key_bytes)};
    const std::uint64_t inside = (flags & big_data) == 0 ? record.length : g_.version == 1 ? 8 : 24;
    if (inside > end - payload)
      return fail(node, "has a value of " + number(inside) + " bytes, beyond its end");
    used += (payload - node + inside + 1) & ~std::uint64_t{1};
    if (used > end - upper) return fail(g_.header, "has nodes that overlap");
    const std::string_view key(reinterpret_cast<const char*>(p + node + node_bytes), key_bytes);
    if (key_bytes == 0) return fail(node + 6, "has an empty key");
    if ((order & integer_key) != 0 && key_bytes != 4 && key_bytes != 8)
      return fail(node + 6, "has an integer key of " + number(key_bytes) + " bytes");
    if (i > 0 && !(order == 0 ? before < key : is_ascending(before, key)))
      return fail(node, "has the key " + quote(key) + " after " + quote(before) +
                             ": keys do not ascend (or the writer had an order of its own)");
    before = key;
    if (flags != 0) {
      const std::size_t named = to.named.size();
      if (!read_special(page, p, node, payload, record, to, error)) return false;
      if (to.named.size() != named) continue;
    }
    if (names_only_ || (!options_.exclude.empty() && is_excluded(key))) continue;
    to.records.push_back(record);
    std::memcpy(scratch.keys.data() + key_end, key.data(), key_bytes);
    key_end += key_bytes;
  }
  to.entries += count;
  return true;
}

// -- levels
// ----------------------------------------------------------------------------------------

// Read pages, given in key order, in file order, and stage their contents.
bool Walker::read_level(const std::vector<std::uint64_t>& pages, bool leaves, Level& found) {
  std::vector<std::uint32_t> order(pages.size());
  std::iota(order.begin(), order.end(), 0u);
  if (!std::is_sorted(pages.begin(), pages.end()))
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return pages[a] < pages[b]; });
  const std::uint64_t most =
      std::min(run_pages, std::max<std::uint64_t>(1, run_bytes / g_.page_bytes));
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint64_t page = pages[order[i]];
    if (i == 0 || page - pages[order[i - 1]] > gap_pages + 1 ||
        page - pages[order[starts.back()]] >= most)
      starts.push_back(i);
  }
  starts.push_back(order.size());
  found.runs.resize(starts.size() - 1);
  found.slices.resize(pages.size());
  JobErrors job_errors;
  const auto work = [&](std::size_t run, Scratch& scratch) {
    const std::uint64_t first = pages[order[starts[run]]];
    const std::uint64_t last = pages[order[starts[run + 1] - 1]];
    const std::uint64_t bytes = (last - first + 1) * g_.page_bytes;
    if (scratch.bytes.size() < bytes) scratch.bytes.resize(bytes);
    const std::int64_t got = source_.read(g_.at(first), {scratch.bytes.data(), bytes});
    if (got < 0) return job_errors.report(run, static_cast<int>(-got));
    if (static_cast<std::uint64_t>(got) < bytes)
      return job_errors.report(run, {g_.at(first) + static_cast<std::uint64_t>(got),
                                 "the file ends here, and had " + number(source_.size) +
                                     " bytes: it was cut off meanwhile"});
    Staged& to = found.runs[run];
    if (leaves) {
      std::size_t records = 0;
      for (std::size_t i = starts[run]; i < starts[run + 1]; ++i)
        records += g_.lower(scratch.bytes.data() + (pages[order[i]] - first) * g_.page_bytes) / 2;
      to.records.reserve(std::min<std::size_t>(records, bytes / node_bytes));
    }
    std::uint64_t key_end = 0;
    for (std::size_t i = starts[run]; i < starts[run + 1]; ++i) {
      const std::uint64_t number_ = pages[order[i]];
      const std::byte* p = scratch.bytes.data() + (number_ - first) * g_.page_bytes;
      const std::uint64_t key_first = key_end;
      const std::size_t start = leaves ? to.records.size() : to.children.size();
      ParseError error;
      if (!check_page(number_, leaves ? leaf_page : branch_page, p, error) ||
          !(leaves ? read_leaf(number_, p, to, scratch, key_end, error) : read_branch(number_, p, to, error)))
        return job_errors.report(run, std::move(error));
      const std::size_t stop = leaves ? to.records.size() : to.children.size();
      found.slices[order[i]] = {static_cast<std::uint32_t>(run), static_cast<std::uint32_t>(start),
                                static_cast<std::uint32_t>(stop - start),
                                static_cast<std::uint32_t>(key_first),
                                static_cast<std::uint32_t>(key_end - key_first)};
    }
    to.keys.assign(scratch.keys.begin(),
                   scratch.keys.begin() + static_cast<std::ptrdiff_t>(key_end));
  };
  in_parallel<Scratch>(found.runs.size(), threads_, job_errors, work);
  return take_errors(job_errors);
}

bool Walker::is_plausible(const Database& database, std::uint64_t offset) {
  if ((database.flags & dup_sort) != 0)
    return refuse(offset + 4,
                  "a database with several values for a key (MDB_DUPSORT), which are no "
                  "samples of their own: copy it into one with one value a key");
  if ((database.flags & dup_flags) != 0)
    return refuse(offset + 4,
                  "a database with flags " + number(database.flags) +
                      " that only one with several values for a key has: it is damaged");
  if (database.root == no_page) {
    if (database.entries != 0)
      return refuse(offset + 32,
                    "a database without pages has " + number(database.entries) + " entries");
    return true;
  }
  if (database.depth == 0 || database.depth > depth_max)
    return refuse(offset + 6,
                  "a tree of depth " + number(database.depth) + ", and 1 to 32 are possible");
  if (database.root < 2 || database.root > g_.last_page || database.root >= g_.pages)
    return refuse(offset + 40, "the root is page " + number(database.root) +
                                   ", and the pages are 2 to " +
                                   number(std::min(g_.last_page, g_.pages - 1)));
  return true;
}

// Walk one database: its records go to `out_`, the databases that it holds to `named_`.
bool Walker::walk_tree(const Database& database, std::uint64_t offset, bool main) {
  if (!is_plausible(database, offset)) return false;
  flags_ = database.flags;
  main_ = main;
  out_.entries = database.entries;
  out_.integer_keys = (flags_ & integer_key) != 0;
  if (database.root == no_page) return true;
  if (!reached_->mark(database.root))
    return refuse(offset + 40, "the root is page " + number(database.root) +
                                   ", which another database has as well");
  std::vector<std::uint64_t> pages{database.root};
  std::uint64_t branches = 0;
  for (unsigned depth = 1; depth < database.depth; ++depth) {
    Level found;
    if (!read_level(pages, false, found)) return false;
    branches += pages.size();
    std::vector<std::uint64_t> children;
    for (const Slice& slice : found.slices) {
      const auto from = found.runs[slice.run].children.begin() + slice.first;
      children.insert(children.end(), from, from + slice.count);
    }
    pages = std::move(children);
  }
  Level leaves;
  if (!read_level(pages, true, leaves)) return false;
  std::uint64_t entries = 0, overflows = database.overflows;
  std::vector<Big> bigs;
  for (Staged& run : leaves.runs) {
    entries += run.entries;
    bigs.insert(bigs.end(), run.bigs.begin(), run.bigs.end());
    std::move(run.named.begin(), run.named.end(), std::back_inserter(named_));
    run.bigs = {};
  }
  const auto differ = [&](std::uint64_t at, const char* what, std::uint64_t said,
                          std::uint64_t is) {
    return refuse(offset + at,
                  "the database says " + number(said) + " " + what + ", and has " + number(is));
  };
  if (entries != database.entries) return differ(32, "entries", database.entries, entries);
  if (branches != database.branches) return differ(8, "branch pages", database.branches, branches);
  if (pages.size() != database.leaves)
    return differ(16, "leaf pages", database.leaves, pages.size());
  if (!verify(bigs, overflows)) return false;
  if (overflows != database.overflows)
    return differ(24, "overflow pages", database.overflows, overflows);
  return join_records(leaves);
}

// Compare the headers of values that have pages of their own, and count these pages.
bool Walker::verify(std::vector<Big>& bigs, std::uint64_t& overflows) {
  const bool wanted = options_.verify == Verify::on ||
                      (options_.verify == Verify::automatic && options_.concurrent);
  if (!wanted) {
    if (g_.version == 1) return true;  // the number of pages stands with the value: not known then
    overflows = 0;
    for (const Big& big : bigs) overflows += big.claimed;
    return true;
  }
  std::sort(bigs.begin(), bigs.end(), [](const Big& a, const Big& b) { return a.page < b.page; });
  std::atomic<std::uint64_t> sum{0};
  JobErrors job_errors;
  const auto work = [&](std::size_t job, Scratch& scratch) {
    const std::size_t stop = std::min(bigs.size(), (job + 1) * values_at_once);
    const std::uint64_t gap = options_.concurrent ? 1 : 64;
    std::uint64_t pages = 0;
    for (std::size_t i = job * values_at_once; i < stop;) {
      std::size_t j = i + 1;
      while (j < stop && bigs[j].page - bigs[j - 1].page <= gap &&
             (bigs[j].page - bigs[i].page) * g_.page_bytes < run_bytes)
        ++j;
      const std::uint64_t bytes = (bigs[j - 1].page - bigs[i].page) * g_.page_bytes + g_.header;
      if (scratch.bytes.size() < bytes) scratch.bytes.resize(bytes);
      const std::int64_t got = source_.read(g_.at(bigs[i].page), {scratch.bytes.data(), bytes});
      if (got < 0) return job_errors.report(job, static_cast<int>(-got));
      if (static_cast<std::uint64_t>(got) < bytes)
        return job_errors.report(job, {g_.at(bigs[i].page) + static_cast<std::uint64_t>(got),
                                   "the file ends here: it was cut off meanwhile"});
      for (const std::uint64_t first = bigs[i].page; i < j; ++i) {
        const Big& big = bigs[i];
        const std::byte* p = scratch.bytes.data() + (big.page - first) * g_.page_bytes;
        const char* what = nullptr;
        if (g_.numbered(p) != big.page)
          what = " carries another number";
        else if ((g_.flags(p) & page_types) != overflow_page)
          what = " is no overflow page";
        else if (g_.run(p) < big.least)
          what = " begins fewer pages than the value needs";
        else if (g_.version > 1 && load<std::uint64_t>(p + 8) > g_.txnid)
          what = " was written after the last commit";
        if (what != nullptr)
          return job_errors.report(job, {g_.at(big.page), "page " + number(big.page) +
                                                          ", where a value begins (node at byte " +
                                                          number(big.node) + ")," + what});
        pages += g_.run(p);
      }
    }
    sum += pages;
  };
  const std::size_t jobs = (bigs.size() + values_at_once - 1) / values_at_once;
  in_parallel<Scratch>(jobs, options_.concurrent && !options_.threads ? verify_threads : threads_,
                       job_errors, work);
  overflows = sum;
  return take_errors(job_errors);
}

// -- records
// ---------------------------------------------------------------------------------------

// Join the staged records in key order: one row each.
bool Walker::join_records(Level& leaves) {
  if (names_only_) return true;
  const std::vector<Slice>& slices = leaves.slices;
  std::vector<std::uint64_t> row(slices.size() + 1), byte(slices.size() + 1);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    row[i + 1] = row[i] + slices[i].count;
    byte[i + 1] = byte[i] + slices[i].key_bytes;
  }
  out_.keys = Column<std::uint8_t>(byte.back());
  out_.key_ends = Column<std::int64_t>(row.back());
  out_.offset = Column<std::int64_t>(row.back());
  out_.length = Column<std::int64_t>(row.back());
  constexpr std::size_t leaves_at_once = 256;
  JobErrors job_errors;
  const auto last_key = [&](std::size_t i) -> std::string_view {
    const Staged& run = leaves.runs[slices[i].run];
    const std::uint32_t bytes = run.records[slices[i].first + slices[i].count - 1].key_bytes;
    return {run.keys.data() + slices[i].key_first + slices[i].key_bytes - bytes, bytes};
  };
  const auto work = [&](std::size_t job, Scratch&) {
    const std::size_t stop = std::min(slices.size(), (job + 1) * leaves_at_once);
    for (std::size_t i = job * leaves_at_once; i < stop; ++i) {
      const Slice& slice = slices[i];
      if (slice.count == 0) continue;
      const Staged& run = leaves.runs[slice.run];
      const Record* from = run.records.data() + slice.first;
      const char* keys = run.keys.data() + slice.key_first;
      std::size_t before = i;
      while (before > 0 && slices[before - 1].count == 0) --before;
      const std::string_view first(keys, from->key_bytes);
      if (before > 0 && !is_ascending(last_key(before - 1), first))
        return job_errors.report(
            job,
            {from->offset, "the record with the key " + quote(first) + " comes after " +
                               quote(last_key(before - 1)) +
                               ": keys do not ascend (or the writer had an order of its own)"});
      std::memcpy(out_.keys.begin() + byte[i], keys, slice.key_bytes);
      std::uint64_t end = byte[i], to = row[i];
      for (std::uint32_t k = 0; k < slice.count; ++k, ++to) {
        end += from[k].key_bytes;
        out_.key_ends[to] = static_cast<std::int64_t>(end);
        out_.offset[to] = static_cast<std::int64_t>(from[k].offset);
        out_.length[to] = from[k].length;
      }
    }
  };
  in_parallel<Scratch>((slices.size() + leaves_at_once - 1) / leaves_at_once, threads_, job_errors,
                       work);
  return take_errors(job_errors);
}

// Sort the rows by offset.
void Walker::sort_by_offset() {
  const std::size_t count = out_.offset.size;
  std::vector<std::pair<std::int64_t, std::size_t>> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = {out_.offset[i], i};
  std::sort(order.begin(), order.end());
  Column<std::uint8_t> keys(out_.keys.size);
  Column<std::int64_t> ends(count), length(count);
  std::size_t end = 0;
  for (std::size_t to = 0; to < count; ++to) {
    const auto [offset, from] = order[to];
    const std::int64_t start = from ? out_.key_ends[from - 1] : 0;
    const auto bytes = static_cast<std::size_t>(out_.key_ends[from] - start);
    std::memcpy(keys.begin() + end, out_.keys.begin() + start, bytes);
    end += bytes;
    ends[to] = static_cast<std::int64_t>(end);
    length[to] = out_.length[from];
  }
  for (std::size_t to = 0; to < count; ++to) out_.offset[to] = order[to].first;
  out_.keys = std::move(keys);
  out_.key_ends = std::move(ends);
  out_.length = std::move(length);
}

void Walker::walk() {
  if (!read_geometry()) return;
  reached_.emplace(std::min(g_.pages, g_.last_page) + 2);
  const std::uint64_t main_at = g_.at(live_.slot) + g_.header + 72;
  const bool inner = options_.database && !options_.database->empty();
  names_only_ = inner;
  if (!walk_tree(live_.main, main_at, true)) return;
  if (!named_.empty() && !options_.database) {
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(named_.size(), 8); ++i)
      names += (i ? ", " : "") + quote(named_[i].name);
    if (named_.size() > 8) names += " and " + number(named_.size() - 8) + " more";
    refuse(named_[0].offset,
           "the environment holds the databases " + names + ": choose one with database=" +
               (out_.offset.size == 0 ? std::string()
                                      : "; database=\"\" reads the " + number(out_.offset.size) +
                                            " values beside them in the main database"));
    return;
  }
  if (inner) {
    std::string names;
    const Named* found = nullptr;
    for (const Named& each : named_) {
      if (each.name == *options_.database) found = &each;
      if (names.size() < 200) names += (names.empty() ? "" : ", ") + quote(each.name);
    }
    if (found == nullptr) {
      refuse(main_at, "the environment has no database " + quote(*options_.database) +
                          (named_.empty() ? ", nor any with a name: leave database= out"
                                          : ": it has " + names));
      return;
    }
    const Named chosen = *found;
    names_only_ = false;
    if (!walk_tree(chosen.database, chosen.offset, false)) return;
  }
  if (options_.file_order) sort_by_offset();
  if (options_.datum) parse_datums(source_, options_.concurrent, threads_, out_);
}

}  // namespace

Walk walk(Source& source, const Options& options) {
  Walk found;
  try {
    Walker(source, options, found).walk();
  } catch (const std::bad_alloc&) {
    found.read_error = ENOMEM;
  }
  return found;
}

}  // namespace penstock::lmdb
