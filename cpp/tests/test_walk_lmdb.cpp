// An environment written byte by byte: two leaves below a branch, and a value on pages of its own.
#include "walk_lmdb.hpp"

#include <cstring>
#include <string>

#include "check.hpp"
#include "memory_source.hpp"

using penstock::MemorySource;
namespace lmdb = penstock::lmdb;

namespace {

constexpr std::size_t page = 512;
constexpr std::size_t main_record = page + 16 + 72;

template <typename T>
void put(std::string& bytes, std::size_t at, T value) {
  CHECK(at + sizeof value <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

void put_database(std::string& bytes, std::size_t at, std::uint16_t depth, std::uint64_t branches,
                  std::uint64_t leaves, std::uint64_t overflows, std::uint64_t entries,
                  std::uint64_t root) {
  put(bytes, at + 6, depth);
  put(bytes, at + 8, branches);
  put(bytes, at + 16, leaves);
  put(bytes, at + 24, overflows);
  put(bytes, at + 32, entries);
  put(bytes, at + 40, root);
}

void put_page(std::string& bytes, std::uint64_t number, std::uint16_t flags) {
  put(bytes, number * page, number);
  put(bytes, number * page + 10, flags);
  put(bytes, number * page + 12, std::uint16_t{16});
  put(bytes, number * page + 14, std::uint16_t{page});
}

// Where the node begins.
std::size_t put_node(std::string& bytes, std::uint64_t number, std::uint32_t head,
                     std::uint16_t flags, const std::string& key, const std::string& payload) {
  const std::size_t at = number * page;
  std::uint16_t lower = 0, upper = 0;
  std::memcpy(&lower, bytes.data() + at + 12, 2);
  std::memcpy(&upper, bytes.data() + at + 14, 2);
  upper = static_cast<std::uint16_t>(upper - ((8 + key.size() + payload.size() + 1) & ~std::size_t{1}));
  put(bytes, at + lower, upper);
  put(bytes, at + 12, static_cast<std::uint16_t>(lower + 2));
  put(bytes, at + 14, upper);
  put(bytes, at + upper, head);
  put(bytes, at + upper + 4, flags);
  put(bytes, at + upper + 6, static_cast<std::uint16_t>(key.size()));
  bytes.replace(at + upper + 8, key.size() + payload.size(), key + payload);
  return at + upper;
}

// Pages: metas 0 and 1, leaf 2 (a, b), leaf 3 (c), branch 4, value 5 and 6.
std::string environment() {
  std::string bytes(7 * page, '\0');
  for (const std::uint64_t slot : {0, 1}) {
    const std::size_t at = slot * page + 16;
    put_page(bytes, slot, 8);
    put(bytes, at, std::uint32_t{0xBEEFC0DE});
    put(bytes, at + 4, std::uint32_t{1});
    put(bytes, at + 24, std::uint32_t{page});
    put_database(bytes, at + 24, 0, 0, 0, 0, 0, ~std::uint64_t{0});
    put_database(bytes, at + 72, 2, 1, 2, 2, 3, 4);
    put(bytes, at + 120, std::uint64_t{6});
    put(bytes, at + 128, slot);
  }
  put_page(bytes, 2, 2);
  put_page(bytes, 3, 2);
  put_page(bytes, 4, 1);
  put_page(bytes, 5, 4);
  put(bytes, 5 * page + 12, std::uint32_t{2});
  bytes.replace(5 * page + 16, 600, std::string(600, 'v'));
  put_node(bytes, 2, 3, 0, "a", "one");
  put_node(bytes, 2, 600, 1, "b", std::string("\5\0\0\0\0\0\0\0", 8));
  put_node(bytes, 3, 0, 0, "c", "");
  put_node(bytes, 4, 2, 0, "", "");
  put_node(bytes, 4, 3, 0, "c", "");
  return bytes;
}

lmdb::Walk walk(const std::string& bytes, unsigned threads = 1, bool file_order = false) {
  MemorySource source(bytes);
  lmdb::Options options;
  options.threads = threads;
  options.file_order = file_order;
  options.verify = lmdb::Verify::on;
  return lmdb::walk(source, options);
}

void records_are_found() {
  const std::string bytes = environment();
  const auto found = walk(bytes);
  CHECK(!found.damage);
  CHECK(found.entries == 3 && found.txnid == 1 && found.page_bytes == page);
  CHECK(found.offset.size == 3);
  CHECK(std::string(found.keys.begin(), found.keys.begin() + found.keys.size) == "abc");
  const std::string values[] = {"one", std::string(600, 'v'), ""};
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(bytes.substr(static_cast<std::size_t>(found.offset[i]),
                       static_cast<std::size_t>(found.length[i])) == values[i]);
  const auto sorted = walk(bytes, 1, true);
  CHECK(sorted.offset[0] < sorted.offset[1] && sorted.offset[1] < sorted.offset[2]);
}

void damage(std::size_t at, std::uint16_t value, std::size_t offset, const std::string& reason) {
  std::string bytes = environment();
  put(bytes, at, value);
  const auto found = walk(bytes);
  CHECK(found.damage);
  CHECK(found.damage->message.find(reason) != std::string::npos);
  CHECK(found.damage->offset == offset);
}

void damages_are_told_with_their_place() {
  damage(16, 0, 0, "no magic number");
  damage(2 * page + 16, 5000, 2 * page + 16, "points to a node");
  damage(3 * page, 77, 3 * page, "carries the number 77");
  damage(5 * page, 77, 5 * page, "carries another number");
  damage(main_record + 32, 7, main_record + 32, "says 7 entries");
  damage(main_record + 6, 40, main_record + 6, "depth 40");
  damage(main_record + 4, 4, main_record + 4, "MDB_DUPSORT");
}

// No byte makes a walk leave the file; the sanitizers look on.
void any_byte_may_be_wrong() {
  const std::string good = environment();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0, 1, 0x7f, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      const auto found = walk(bytes);
      CHECK(found.error == 0);
      for (std::size_t i = 0; i < found.offset.size && !found.damage; ++i)
        CHECK(static_cast<std::size_t>(found.offset[i] + found.length[i]) <= bytes.size());
    }
  }
}

void any_cut_is_told() {
  const std::string good = environment();
  for (std::size_t size = 0; size < 5 * page + 16 + 600; ++size) CHECK(walk(good.substr(0, size)).damage);
}

}  // namespace

int main() {
  records_are_found();
  damages_are_told_with_their_place();
  any_byte_may_be_wrong();
  any_cut_is_told();
  return 0;
}
