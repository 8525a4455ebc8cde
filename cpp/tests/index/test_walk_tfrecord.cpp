// TFRecord files written byte by byte: checks, features, every cut and every changed byte.
#include "index/walk_tfrecord.hpp"

#include <string>

#include "tests/support/check.hpp"
#include "ground/crc32c.hpp"
#include "tests/support/memory_source.hpp"

using penstock::MemorySource;
using penstock::ReadPolicy;
namespace tfrecord = penstock::tfrecord;
using tfrecord::Check;

namespace {

std::string little(std::uint64_t v, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> (8 * i));
  return out;
}

std::string mask_crc(const std::string& text) {
  return little(tfrecord::mask_crc(penstock::crc32c(std::as_bytes(std::span(text)))), 4);
}

std::string framed(const std::string& data) {
  const std::string length = little(data.size(), 8);
  return length + mask_crc(length) + data + mask_crc(data);
}

std::string message(int number, const std::string& value) {
  CHECK(value.size() < 128);
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(value.size()) + value;
}

std::string feature(const std::string& name, int kind, const std::string& list) {
  return message(1, message(1, name) + message(2, message(kind, list)));
}

std::string example() {
  const std::string floats = message(1, little(0x3f800000, 4) + little(0x40000000, 4));
  return message(1, feature("a", 1, message(1, "bytes")) + feature("f", 2, floats) +
                        feature("i", 3, message(1, "\x05\x7f")));
}

tfrecord::Walk walk(std::string_view bytes, const tfrecord::Options& options) {
  MemorySource source(bytes);
  return tfrecord::walk(source, ReadPolicy::local(), options);
}

void records_are_found() {
  const std::string bytes = framed("") + framed("data") + framed(std::string(3 << 20, 'x'));
  for (const Check check : {Check::none, Check::length, Check::all}) {
    const auto found = walk(bytes, {check, {}});
    CHECK(!found.parse_error);
    CHECK((found.offset == std::vector<std::int64_t>{12, 28, 48}));
    CHECK((found.length == std::vector<std::int64_t>{0, 4, 3 << 20}));
  }
}

void checks_find_what_they_check() {
  std::string bytes = framed("data");
  bytes[13] ^= 1;
  CHECK(!walk(bytes, {Check::length, {}}).parse_error);
  CHECK(walk(bytes, {Check::all, {}}).parse_error->offset == 12);
  bytes[9] ^= 1;
  CHECK(!walk(bytes, {Check::none, {}}).parse_error);
  CHECK(walk(bytes, {Check::length, {}}).parse_error->offset == 8);
}

void features_are_extents() {
  const std::string bytes = framed("") + framed(example());
  const auto found = walk(bytes, {Check::all, {"i", "missing", "f", "a"}});
  CHECK(!found.parse_error);
  const auto& f = found.features;
  CHECK((f.kind == std::vector<std::uint8_t>{0, 0, 0, 0, 3, 0, 2, 1}));
  CHECK(f.value[4] == 5 && f.values[4] == 2);
  CHECK(f.values[6] == 2 && f.length[6] == 8);
  CHECK(bytes.substr(static_cast<std::size_t>(f.offset[7]), 5) == "bytes");
}

void every_cut_is_seen() {
  const std::string bytes = framed("data") + framed(example());
  for (std::size_t n = 1; n < bytes.size(); ++n) {
    const auto found = walk(std::string_view(bytes).substr(0, n), {Check::all, {"a"}});
    CHECK((found.parse_error && found.parse_error->offset <= n) || n == 20);
  }
}

void no_changed_byte_gives_bytes_beyond_the_record() {
  std::string data = example();
  for (std::size_t at = 0; at < data.size(); ++at)
    for (int change = 1; change < 256; ++change) {
      data[at] = static_cast<char>(data[at] ^ change);
      const auto found = walk(framed(data), {Check::all, {"a", "f", "i"}});
      for (std::size_t i = 0; i < found.features.kind.size(); ++i)
        CHECK(found.features.offset[i] == -1 ||
              (found.features.offset[i] >= 12 &&
               static_cast<std::size_t>(found.features.offset[i] + found.features.length[i]) <=
                   12 + data.size()));
      data[at] = static_cast<char>(data[at] ^ change);
    }
}

void pieces_join() {
  const std::string inner = framed("in a record");
  const std::string bytes = framed("") + framed(inner + inner) + framed("data") + framed("x");
  for (std::uint64_t middle = 1; middle < bytes.size() + 20; ++middle) {
    const auto first = walk(bytes, {Check::all, {}, 0, middle});
    const auto last = walk(bytes, {Check::all, {}, middle});
    CHECK(!first.parse_error && first.begin == 0);
    if (first.end != last.begin) {  // where a record in a record seems to begin
      CHECK(middle > 16 && middle <= 28 + inner.size());
      continue;
    }
    CHECK(first.offset.size() + last.offset.size() == 4 && last.end == bytes.size());
  }
}

}  // namespace

int main() {
  records_are_found();
  pieces_join();
  checks_find_what_they_check();
  features_are_extents();
  every_cut_is_seen();
  no_changed_byte_gives_bytes_beyond_the_record();
}
