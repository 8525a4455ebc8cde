// Environments written page by page: every version and page size, every damage, every cut.
#include "index/walk_lmdb.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "tests/support/check.hpp"
#include "tests/support/lmdb_writer.hpp"
#include "tests/support/memory_source.hpp"

using penstock::LmdbWriter;
using penstock::MemorySource;
namespace lmdb = penstock::lmdb;

namespace {

using Pairs = LmdbWriter::Pairs;

// Unlike MemorySource it counts nothing, and so may be read by several threads.
struct SharedSource : penstock::Source {
  explicit SharedSource(std::string_view contents) : Source(contents.size()), bytes(contents) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    if (offset >= bytes.size()) return 0;
    const std::string_view part = bytes.substr(offset, out.size());
    if (!part.empty()) std::memcpy(out.data(), part.data(), part.size());
    return static_cast<std::int64_t>(part.size());
  }

  std::string_view bytes;
};

lmdb::Walk walk(std::string_view bytes, lmdb::Options options = {}, unsigned threads = 3) {
  SharedSource source(bytes);
  options.threads = threads;
  return lmdb::walk(source, options);
}

Pairs numbered(std::size_t count, const std::function<std::size_t(std::size_t)>& bytes) {
  Pairs pairs;
  for (std::size_t i = 0; i < count; ++i) {
    std::string key = std::to_string(1000000 + i) + std::string(i % 3, 'k');
    pairs.emplace_back(key, std::string(bytes(i), static_cast<char>('a' + i % 26)));
  }
  return pairs;
}

std::string key(const lmdb::Walk& found, std::size_t i) {
  const auto start = i == 0 ? 0 : found.key_ends[i - 1];
  return {reinterpret_cast<const char*>(found.keys.begin()) + start,
          static_cast<std::size_t>(found.key_ends[i] - start)};
}

void same(const std::string& bytes, const lmdb::Walk& found, const Pairs& pairs) {
  if (found.parse_error) std::fprintf(stderr, "%s\n", found.parse_error->message.c_str());
  CHECK(!found.parse_error && found.read_error == 0);
  CHECK(found.offset.size == pairs.size() && found.length.size == pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    CHECK(key(found, i) == pairs[i].first);
    CHECK(bytes.substr(static_cast<std::size_t>(found.offset[i]),
                       static_cast<std::size_t>(found.length[i])) == pairs[i].second);
  }
}

void every_version_and_page_size() {
  for (unsigned version : {1u, 2u, 3u})
    for (std::size_t page : {512u, 1024u, 4096u, 16384u, 32768u, 65536u}) {
      if (version == 1 && page == 65536) continue;
      const Pairs pairs = numbered(400, [&](std::size_t i) {
        return i % 7 == 0 ? page / 2 - 40 + i % 60 : i % 5 == 0 ? page * (i % 3) + i : i % 50;
      });
      const std::string bytes = LmdbWriter(version, page).write(pairs);
      const lmdb::Walk found = walk(bytes);
      same(bytes, found, pairs);
      CHECK(found.version == version && found.page_bytes == page && found.entries == 400);
      CHECK(found.txnid == LmdbWriter::txnid);
      lmdb::Options off;
      off.verify = lmdb::Verify::off;
      same(bytes, walk(bytes, off), pairs);
      lmdb::Options remote;
      remote.concurrent = false;
      same(bytes, walk(bytes, remote), pairs);
    }
}

void empty_and_named() {
  CHECK(walk(LmdbWriter().write({})).offset.size == 0);
  for (unsigned version : {1u, 2u, 3u}) {
    const Pairs one = numbered(60, [](std::size_t i) { return i; });
    const Pairs two = numbered(90, [](std::size_t i) { return 9 * i; });
    const std::string bytes =
        LmdbWriter(version).write_named({{"empty", {}}, {"one", one}, {"two", two}});
    const lmdb::Walk unnamed = walk(bytes);
    CHECK(unnamed.parse_error && unnamed.parse_error->message.find("database=") != std::string::npos);
    lmdb::Options options;
    options.database = "one";
    same(bytes, walk(bytes, options), one);
    options.database = "two";
    same(bytes, walk(bytes, options), two);
    options.database = "empty";
    same(bytes, walk(bytes, options), {});
    options.database = "";
    same(bytes, walk(bytes, options), {});
    options.database = "three";
    CHECK(walk(bytes, options).parse_error->message.find("'one', 'two'") != std::string::npos);
  }
}

void keys_are_left_out_and_offsets_sorted() {
  Pairs pairs = numbered(200, [](std::size_t i) { return i % 40; });
  pairs.emplace_back("__keys__", "x");
  pairs.emplace_back("__len__", "y");
  const std::string bytes = LmdbWriter().write(pairs);
  lmdb::Options options;
  options.exclude = {"__keys__", "__len__"};
  pairs.resize(200);
  same(bytes, walk(bytes, options), pairs);
  options.file_order = true;
  const lmdb::Walk found = walk(bytes, options);
  CHECK(std::is_sorted(found.offset.begin(), found.offset.begin() + 200));
  std::sort(pairs.begin(), pairs.end());
  for (std::size_t i = 0; i < 200; ++i) {
    const auto of_key = std::find_if(pairs.begin(), pairs.end(),
                                     [&](const auto& pair) { return pair.first == key(found, i); });
    CHECK(of_key != pairs.end());
    CHECK(bytes.substr(static_cast<std::size_t>(found.offset[i]),
                       static_cast<std::size_t>(found.length[i])) == of_key->second);
  }
}

template <typename T>
std::string with(std::string bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

void every_damage_is_told() {
  for (unsigned version : {1u, 2u, 3u}) {
    LmdbWriter writer(version);
    const std::size_t h = writer.header(), page = 512, main = page + h + 72;
    const std::size_t base = version == 1 ? 0 : h;
    // 12 records a leaf or so; the first value has pages of its own and is on page 2.
    const Pairs pairs = numbered(300, [](std::size_t i) { return i == 0 ? 900u : 20u; });
    const std::string good = writer.write(pairs);
    same(good, walk(good), pairs);
    const auto at = [&](std::size_t offset) {
      std::uint64_t word;
      std::memcpy(&word, good.data() + offset, 8);
      return word;
    };
    const std::size_t root = at(main + 40) * page;
    const std::size_t run = 2 * page;
    std::size_t leaf = run;
    while ((at(leaf + h - 6) & 0xffff) != 2) leaf += page;
    const std::size_t node = leaf + (at(leaf + h) & 0xffff) + base;
    const std::size_t second = leaf + (at(leaf + h + 2) & 0xffff) + base;
    const std::size_t child = root + (at(root + h) & 0xffff) + base;
    const std::size_t sibling = root + (at(root + h + 2) & 0xffff) + base;
    const auto u16 = [&](std::size_t offset, unsigned value) {
      return with(good, offset, static_cast<std::uint16_t>(value));
    };
    const auto u32 = [&](std::size_t offset, std::uint32_t value) {
      return with(good, offset, value);
    };
    const auto u64 = [&](std::size_t offset, std::uint64_t value) {
      return with(good, offset, value);
    };
    const struct {
      std::string bytes;
      const char* reason;
    } cases[] = {
        {u32(h, 0), "no magic"},
        {u32(page + h, 0), "meta page 1 has no magic"},
        {u32(h, 0xDEC0EFBE), "big-endian"},
        {u32(h + 4, 999), "developer build"},
        {u32(h + 4, 77), version == 1 ? "data version 77" : "data version 77"},
        {u32(page + h + 4, 4), "data version 4"},
        {u32(page + h + 24, 1024), "pages of 1024"},
        {u32(h + 24, 513), "no power of two"},
        {u16(h - 6, 2), "not marked as a meta page"},
        {u64(page, 5), "carries the number 5"},
        {u16(main + 4, 4), "MDB_DUPSORT"},
        {u16(main + 4, 0x10), "only one with several values"},
        {u16(main + 6, 40), "depth 40"},
        {u16(main + 6, 0), "depth 0"},
        {u16(main + 6, 1), "has type 1"},
        {u16(main + 6, 3), "has type 2"},
        {u64(main + 8, 7), "branch pages"},
        {u64(main + 16, 7), "leaf pages"},
        {u64(main + 24, 7), "overflow pages"},
        {u64(main + 32, 7), "says 7 entries"},
        {u64(main + 40, 1), "the root is page 1"},
        {u64(main + 40, 1 << 20), "the root is page"},
        {u64(leaf, 999), "carries the number 999"},
        {u16(root + h - 6, 4), "has type 4"},
        {u16(leaf + h - 6, 0x22), "has type"},
        {u16(leaf + h - 4, 65535), "bounds"},
        {u16(leaf + h - 4, h - base - 2), "bounds"},
        {u16(leaf + h - 2, 600), "bounds"},
        {u16(leaf + h, 5000), "points to a node"},
        {u16(leaf + h, 511), "points to a node"},
        {u16(leaf + h, 4), "points to a node"},
        {u16(second + 6, 60000), "key of 60000"},
        {u16(second + 6, 0), "empty key"},
        {u32(second, 4000), "a value of 4000"},
        {u16(second + 4, 8), "unknown flags"},
        {u16(second + 4, 4), "several values"},
        {u16(second + 4, 2), "database record"},
        {u16(child + 6, 600), "key of 600"},
        {u32(child, 0x7fffffff), "has the child 2147483647"},
        {u32(child, 1), "has the child 1"},
        {u32(child, static_cast<std::uint32_t>(at(sibling))), "another page has as well"},
        {u32(child, static_cast<std::uint32_t>(root / page)), "another page has as well"},
        {u32(node, 0xffffffff), "a value of 4294967295"},
        {u64(run, 9), "carries another number"},
        {u16(run + h - 6, 2), "no overflow page"},
        {u32(run + h - 4, 1), "fewer pages"},
        {with(u32(child, static_cast<std::uint32_t>(at(sibling))), sibling,
              static_cast<std::uint32_t>(at(child))),
         "do not ascend"},
    };
    for (const auto& each : cases) {
      for (unsigned threads : {1u, 4u}) {
        const lmdb::Walk found = walk(each.bytes, {}, threads);
        if (!found.parse_error || found.parse_error->message.find(each.reason) == std::string::npos)
          std::fprintf(stderr, "version %u: expected '%s', found '%s'\n", version, each.reason,
                       found.parse_error ? found.parse_error->message.c_str() : "nothing");
        CHECK(found.parse_error && found.parse_error->message.find(each.reason) != std::string::npos);
        CHECK(found.parse_error->offset <= each.bytes.size());
      }
    }
    if (version > 1) {
      CHECK(walk(u64(leaf + 8, 8)).parse_error->message.find("transaction 8") != std::string::npos);
      CHECK(walk(u16(h + 28, 0x2008)).parse_error->message.find("encrypted") != std::string::npos);
    }
    for (std::size_t n = 0; n + 1 < good.size(); n += n < 2 * page ? 7 : 101) {
      const lmdb::Walk found = walk(std::string_view(good).substr(0, n));
      CHECK(found.parse_error && found.parse_error->offset <= good.size());
    }
    same(good, walk(good + std::string(5000, '\0')), pairs);
  }
}

// One thread walks here, so that nothing is found by who looks for races, and is slow at it.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kEvery = 31;
#else
constexpr std::size_t kEvery = 1;
#endif

void any_byte_may_be_wrong() {
  const std::string good = LmdbWriter().write(numbered(60, [](std::size_t i) { return i * 20; }));
  for (std::size_t at = 0; at < good.size(); at += kEvery)
    for (const char value : {'\0', '\xff', '\x01'}) {
      const lmdb::Walk found = walk(with(good, at, value), {}, 1);
      CHECK(found.read_error == 0 && (!found.parse_error || found.parse_error->offset <= good.size()));
      for (std::size_t i = 0; i < found.offset.size && !found.parse_error; ++i)
        CHECK(found.offset[i] + found.length[i] <= static_cast<std::int64_t>(good.size()));
    }
}

void other_builds_are_refused() {
  std::string bytes(4096, '\0');
  const std::uint32_t magic = 0xBEEFC0DE;
  const auto reason = [&](std::size_t at, std::uint32_t word, std::uint32_t version) {
    return walk(with(with(bytes, at, word), at + 4, version)).parse_error->message;
  };
  CHECK(reason(12, magic, 1).find("32-bit") != std::string::npos);
  CHECK(reason(16, magic, 2).find("32-bit") != std::string::npos);
  CHECK(reason(12, 0xDEC0EFBE, 0x01000000).find("big-endian") != std::string::npos);
  CHECK(reason(24, 0xDEC0EFBE, 0x03000000).find("big-endian") != std::string::npos);
  CHECK(walk(bytes).parse_error->message.find("no magic") != std::string::npos);
}

void a_node_named_often_is_no_bomb() {
  // Each pointer of the page names the same node: refused at the second, before anything grows.
  const Pairs pairs = numbered(8, [](std::size_t) { return 20u; });
  LmdbWriter writer(1, 32768);
  std::string bytes = writer.write(pairs);
  const std::size_t leaf = 2 * 32768;
  std::uint16_t node;
  std::memcpy(&node, bytes.data() + leaf + 16, 2);
  bytes = with(bytes, leaf + 12, static_cast<std::uint16_t>(16 + 2 * 10000));
  for (std::size_t i = 0; i < 10000; ++i) bytes = with(bytes, leaf + 16 + 2 * i, node);
  CHECK(walk(bytes).parse_error->message.find("do not ascend") != std::string::npos);
}

std::string varint(std::uint64_t n) {
  std::string out;
  for (; n > 127; n >>= 7) out += static_cast<char>((n & 127) | 128);
  return out + static_cast<char>(n);
}

void datums_are_opened() {
  Pairs pairs;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::size_t bytes = i % 4 == 0 ? 0 : i % 50 == 7 ? 40000 : i;
    const std::string data(bytes, static_cast<char>(i));
    pairs.emplace_back(std::to_string(100 + i), "\x08" + varint(3) + "\x22" + varint(bytes) + data +
                                                    "\x28" + varint(i % 2 ? i : ~std::uint64_t{0}));
  }
  const std::string good = LmdbWriter().write(pairs);
  lmdb::Options options;
  options.datum = true;
  for (const bool concurrent : {true, false}) {
    options.concurrent = concurrent;
    const lmdb::Walk found = walk(good, options);
    CHECK(!found.parse_error && found.labelled && found.label.size == 300);
    for (std::size_t i = 0; i < 300; ++i) {
      CHECK(found.label[i] == (i % 2 ? static_cast<std::int64_t>(i) : -1));
      CHECK(found.length[i] == static_cast<std::int64_t>(i % 4 == 0 ? 0 : i % 50 == 7 ? 40000 : i));
      CHECK(good.substr(static_cast<std::size_t>(found.offset[i]),
                        static_cast<std::size_t>(found.length[i])) ==
            std::string(static_cast<std::size_t>(found.length[i]), static_cast<char>(i)));
    }
  }
  for (const std::string& bad : {std::string("\x22\x7fxx"), std::string("\x08"), std::string(),
                                 std::string("\x35"
                                             "abcd"),
                                 std::string("\x0b"), std::string(12, '\xff')})
    CHECK(walk(LmdbWriter().write({{"k", bad}}), options).parse_error->message.find("no Caffe Datum") !=
          std::string::npos);
  const std::string image =
      "\x08\x01\x10\x02\x18\x03\x22\x06"
      "pixels";
  CHECK(walk(LmdbWriter().write({{"a", image}, {"b", image}}), options).shape[2] == 3);
  CHECK(walk(LmdbWriter().write({{"a", image}, {"b", image + "\x38\x01"}}), options).shape[2] == 0);
}

void failing_reads_are_errors() {
  const std::string bytes = LmdbWriter().write(numbered(50, [](std::size_t) { return 9u; }));
  MemorySource source(bytes);
  source.error = EIO;
  const lmdb::Walk found = lmdb::walk(source, {});
  CHECK(found.read_error == EIO && !found.parse_error);
}

}  // namespace

int main() {
  every_version_and_page_size();
  empty_and_named();
  keys_are_left_out_and_offsets_sorted();
  every_damage_is_told();
  any_byte_may_be_wrong();
  other_builds_are_refused();
  a_node_named_often_is_no_bomb();
  datums_are_opened();
  failing_reads_are_errors();
}
