// RecordIO files written byte by byte: parts, headers, every cut and every changed byte.
#include "index/walk_recordio.hpp"

#include <string>

#include "tests/support/check.hpp"
#include "tests/support/memory_source.hpp"

using penstock::MemorySource;
using penstock::ReadPolicy;
namespace recordio = penstock::recordio;

namespace {

std::string little(std::uint64_t v, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> (8 * i));
  return out;
}

const std::string magic = little(recordio::magic, 4);

std::string part(unsigned kind, const std::string& data) {
  return magic + little(kind << 29 | data.size(), 4) + data +
         std::string((4 - data.size() % 4) % 4, '\0');
}

recordio::Walk walk(std::string_view bytes, const recordio::Options& options = {}) {
  MemorySource source(bytes);
  return recordio::walk(source, ReadPolicy::local(), options);
}

std::string joined(const std::string& bytes, const recordio::Walk& found, std::size_t record) {
  std::string out;
  for (auto p = static_cast<std::size_t>(found.first[record]);
       p < static_cast<std::size_t>(found.first[record + 1]); ++p)
    out += bytes.substr(static_cast<std::size_t>(found.offset[p]),
                        static_cast<std::size_t>(found.length[p]));
  return out;
}

void parts_are_joined_with_the_magic_between() {
  const std::string bytes = part(0, "one") + part(1, "") + part(2, "abcd") + part(3, "e") + part(0, "");
  const auto found = walk(bytes);
  CHECK(!found.parse_error);
  CHECK((found.first == std::vector<std::int64_t>{0, 1, 4, 5}));
  CHECK((found.at == std::vector<std::int64_t>{0, 12, 12 + 8 + 12 + 12}));
  CHECK(joined(bytes, found, 0) == "one");
  CHECK(joined(bytes, found, 1) == magic + "abcd" + magic + "e");
  CHECK(joined(bytes, found, 2).empty());
}

void headers_are_read_across_parts() {
  // The id is the magic: the header itself is cut.
  const std::string head = little(0, 4) + little(0x40e00000, 4);  // flag 0, label 7.0
  const std::string rest = little(0, 4) + little(0, 8);
  const std::string bytes = part(1, head) + part(3, rest + "image") +
                            part(0, head + little(9, 8) + little(0, 8) + "other");
  for (const bool strip : {false, true}) {
    const auto found = walk(bytes, {true, strip});
    CHECK(!found.parse_error);
    CHECK(found.label[0] == 7.0f && found.label[1] == 7.0f);
    CHECK(found.id[0] == recordio::magic && found.id[1] == 9);
    CHECK(joined(bytes, found, 0) == (strip ? "image" : head + magic + rest + "image"));
    CHECK(joined(bytes, found, 1).ends_with("other"));
  }
  CHECK(walk(part(0, "too short"), {true, false}).parse_error);
}

void every_cut_is_seen() {
  const std::string whole = part(0, "one");
  const std::string bytes = whole + part(1, "abcd") + part(2, "") + part(3, "xyz");
  for (std::size_t n = 1; n < bytes.size(); ++n) {
    const auto found = walk(std::string_view(bytes).substr(0, n));
    CHECK(found.parse_error.has_value() == (n != whole.size()));
  }
}

void no_changed_byte_gives_bytes_beyond_the_file() {
  std::string bytes = part(0, std::string(30, 'x')) + part(1, "abcd") + part(3, std::string(40, 'y'));
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (int change = 1; change < 256; ++change) {
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      for (const bool header : {false, true}) {
        const auto found = walk(bytes, {header, header});
        CHECK(found.first.back() <= static_cast<std::int64_t>(found.length.size()));
        for (std::size_t i = 0; i < found.offset.size(); ++i)
          CHECK(found.length[i] >= 0 &&
                static_cast<std::size_t>(found.offset[i] + found.length[i]) <= bytes.size());
      }
      bytes[at] = static_cast<char>(bytes[at] ^ change);
    }
}

}  // namespace

int main() {
  parts_are_joined_with_the_magic_between();
  headers_are_read_across_parts();
  every_cut_is_seen();
  no_changed_byte_gives_bytes_beyond_the_file();
}
