// The reader gives the same bytes however it reads, and hops only where records are large; CRC-32C.
#include "index/buffered_reader.hpp"

#include <cstdint>
#include <string>

#include "tests/support/check.hpp"
#include "ground/crc32c.hpp"
#include "tests/support/memory_source.hpp"

using penstock::MemorySource;
using penstock::ReadPolicy;
using penstock::BufferedReader;

namespace {

std::string numbered(std::size_t n) {
  std::string text(n, '\0');
  std::uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return text;
}

void the_bytes_are_right_at_every_step() {
  const std::string text = numbered(3 << 20);
  for (const std::size_t step : {1000u, 4000u, 60000u, 70000u, 300000u})
    for (const std::size_t length : {1u, 12u, 512u, 5000u, 1u << 20}) {
      MemorySource source(text);
      BufferedReader reader(source, ReadPolicy::local());
      for (std::size_t at = 0; at < text.size(); at += step) {
        const std::byte* p = reader.view(at, length);
        CHECK((p != nullptr) == (at + length <= text.size()));
        if (p == nullptr) continue;
        CHECK(std::memcmp(p, text.data() + at, length) == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(p) % 4096 == at % 4096);  // so that copies are fast
      }
    }
}

std::size_t read_bytes(const std::string& text, std::size_t step) {
  MemorySource source(text);
  BufferedReader reader(source, ReadPolicy::local());
  for (std::size_t at = 0; at + 12 <= text.size(); at += step) CHECK(reader.view(at, 12) != nullptr);
  return source.read_bytes;
}

void large_records_are_hopped_over() {
  const std::string text = numbered(64 << 20);
  CHECK(read_bytes(text, 4000) > text.size() / 100 * 99);
  CHECK(read_bytes(text, 4000) <= text.size());
  CHECK(read_bytes(text, 200000) < text.size() / 10);
}

void it_changes_its_mind() {
  const std::string text = numbered(48 << 20);
  MemorySource source(text);
  BufferedReader reader(source, ReadPolicy::local());
  std::size_t at = 0;
  for (; at < (16u << 20); at += 1000) CHECK(reader.view(at, 12) != nullptr);
  const std::size_t small = source.read_bytes;
  for (; at < (32u << 20); at += 200000) CHECK(reader.view(at, 12) != nullptr);
  CHECK(source.read_bytes - small < 8u << 20);
  const std::size_t reads = source.reads;
  for (; at + 12 < text.size(); at += 1000) CHECK(reader.view(at, 12) != nullptr);
  CHECK(source.reads - reads < 100);
}

void parts_join_to_the_whole() {
  const std::string text = numbered(5 << 20);
  MemorySource source(text);
  BufferedReader reader(source, ReadPolicy::local());
  std::string joined;
  while (joined.size() < text.size()) {
    const auto part = reader.view_some(joined.size(), text.size() - joined.size());
    CHECK(!part.empty());
    joined.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  CHECK(joined == text);
  CHECK(reader.view_some(text.size(), 1).empty());
}

void errors_stay() {
  const std::string text = numbered(100);
  MemorySource source(text);
  source.error = 5;
  BufferedReader reader(source, ReadPolicy::local());
  CHECK(reader.view(0, 1) == nullptr && reader.error() == 5);
  source.error = 0;
  CHECK(reader.view(0, 1) == nullptr);
}

void a_file_that_shrank_gives_nothing() {
  MemorySource source("short");
  source.size = 1000;
  BufferedReader reader(source, ReadPolicy::local());
  CHECK(reader.view(0, 5) != nullptr);
  CHECK(reader.view(0, 6) == nullptr && reader.error() == 0);
  CHECK(reader.view(900, 1) == nullptr);
  CHECK(reader.view(UINT64_MAX, 1) == nullptr);
}

void checksums() {
  const auto crc = [](std::string_view text) {
    return penstock::crc32c(std::as_bytes(std::span(text.data(), text.size())));
  };
  CHECK(crc("123456789") == 0xe3069283);
  CHECK(crc("") == 0);
  const std::string text = numbered(20000);
  for (std::size_t n = 0; n < text.size(); n += n < 100 ? 1 : 97) {
    const auto data = std::as_bytes(std::span(text.data() + n % 7, n - n % 7));
    CHECK(penstock::crc32c(data) == penstock::crc32c_portable(data));
    const auto half = data.size() / 3;
    CHECK(penstock::crc32c(data.subspan(half), penstock::crc32c(data.first(half))) ==
          penstock::crc32c(data));
  }
}

}  // namespace

int main() {
  the_bytes_are_right_at_every_step();
  large_records_are_hopped_over();
  it_changes_its_mind();
  parts_join_to_the_whole();
  errors_stay();
  a_file_that_shrank_gives_nothing();
  checksums();
}
