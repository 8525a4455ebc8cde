// JSONL files written byte by byte: ends of lines, blank lines, marks, and every way to read them.
#include "index/walk_jsonl.hpp"

#include <random>
#include <string>
#include <utility>

#include "tests/support/check.hpp"
#include "tests/support/memory_source.hpp"

using penstock::MemorySource;
using penstock::ReadPolicy;
namespace jsonl = penstock::jsonl;

namespace {

std::vector<std::string> lines_of(std::string_view bytes, const ReadPolicy& policy) {
  MemorySource source(bytes);
  const auto found = jsonl::walk(source, policy);
  CHECK(!found.parse_error && found.read_error == 0);
  CHECK(found.offset.size() == found.length.size());
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < found.offset.size(); ++i)
    lines.emplace_back(bytes.substr(static_cast<std::size_t>(found.offset[i]),
                                    static_cast<std::size_t>(found.length[i])));
  return lines;
}

// The same, byte by byte.
std::vector<std::string> plain_lines_of(std::string_view bytes) {
  if (bytes.substr(0, 3) == "\xef\xbb\xbf") bytes.remove_prefix(3);
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const auto end = std::min(bytes.find('\n'), bytes.size());
    std::string line(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

void ends_of_lines() {
  using Lines = std::vector<std::string>;
  for (const ReadPolicy policy : {ReadPolicy::local(), ReadPolicy{1, 1, 0}}) {
    CHECK(lines_of("", policy).empty());
    CHECK(lines_of("\n\r\n \t\n\r", policy).empty());
    CHECK((lines_of("a\nb", policy) == Lines{"a", "b"}));
    CHECK((lines_of("a\r\n\r\nb \r\r\n c\r", policy) == Lines{"a", "b \r", " c"}));
    CHECK((lines_of("\xef\xbb\xbf{}\n\xef\xbb\xbf\n", policy) == Lines{"{}", "\xef\xbb\xbf"}));
    CHECK((lines_of("\xef\xbb", policy) == Lines{"\xef\xbb"}));
  }
}

void any_bytes_in_blocks_of_any_size() {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    const std::string_view letters = "\n\n\r \txy\xef\xbb\xbf";
    const auto length = random() % 300, kinds = 1 + random() % letters.size();
    for (std::size_t i = 0; i < length; ++i) bytes += letters[random() % kinds];
    const auto wanted = plain_lines_of(bytes);
    CHECK(lines_of(bytes, ReadPolicy::local()) == wanted);
    CHECK(lines_of(bytes, ReadPolicy{1 + random() % 40, 1, 0}) == wanted);
  }
}

void implementations_agree() {
  std::mt19937 random(2);
  for (const std::size_t size : {0u, 1u, 63u, 64u, 65u, 4096u, 16384u})
    for (const unsigned every : {1u, 2u, 30u, 500u}) {
      std::vector<std::byte> bytes(size);
      std::vector<std::uint32_t> wanted;
      for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>(random() % every == 0 ? '\n' : random() % 256);
        if (bytes[i] == std::byte{'\n'}) wanted.push_back(static_cast<std::uint32_t>(i));
      }
      for (const auto [name, find_newlines] : jsonl::list_newline_finders()) {
        std::vector<std::uint32_t> found(size + 1);
        found.resize(find_newlines(bytes.data(), size, found.data()));
        CHECK(found == wanted);
      }
    }
}

void long_lines_take_no_memory() {
  const std::string bytes = std::string(20 << 20, 'x') + "\n" + std::string(3, 'y');
  MemorySource source(bytes);
  const auto found = jsonl::walk(source, ReadPolicy::local());
  CHECK((found.length == std::vector<std::int64_t>{20 << 20, 3}));
  CHECK(source.read_bytes == bytes.size());
}

void failed_reads_are_reported() {
  MemorySource source("{}\n");
  source.error = 5;
  CHECK(jsonl::walk(source, ReadPolicy::local()).read_error == 5);
  MemorySource shorter("{}\n");
  shorter.size = 10;
  CHECK(jsonl::walk(shorter, ReadPolicy::local()).parse_error->offset == 3);
}

}  // namespace

int main() {
  ends_of_lines();
  any_bytes_in_blocks_of_any_size();
  implementations_agree();
  long_lines_take_no_memory();
  failed_reads_are_reported();
}
