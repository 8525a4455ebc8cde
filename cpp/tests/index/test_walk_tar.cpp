// Archives written byte by byte: grouping, names, labels; every cut and every changed byte.
#include "index/walk_tar.hpp"

#include <cstdio>
#include <string>

#include "tests/support/check.hpp"
#include "tests/support/memory_source.hpp"
#include "index/tar_header.hpp"
#include "tests/support/tar_writer.hpp"

using penstock::MemorySource;
using penstock::ReadPolicy;
using penstock::tar_member;
namespace tar = penstock::tar;

namespace {

const std::string end(1024, '\0');

tar::Walk walk(std::string_view bytes, const tar::Options& options = {}) {
  MemorySource source(bytes);
  return tar::walk(source, ReadPolicy::local(), options);
}

std::string several() {
  return tar_member("d/", "", '5') + tar_member("d/a.JPG", std::string(700, 'j')) +
         tar_member("d/a.cls", "12\n") + tar_member("README", "dropped") +
         tar_member("d/b.jpg", "") + tar_member("d/b.cls", "-3") +
         tar_member("long", std::string(150, 'n') + ".jpg" + '\0', 'L') + tar_member("x", "yz") + end;
}

void members_form_samples() {
  tar::Options options;
  options.label = "cls";
  const std::string bytes = several();
  const tar::Walk found = walk(bytes, options);
  CHECK(!found.parse_error && found.read_error == 0 && found.dropped == 1);
  CHECK(found.at.size() == 3);
  CHECK(found.keys[0] == "d/a" && found.keys[1] == "d/b");
  CHECK(found.keys[2] == std::string(150, 'n'));
  CHECK(found.extensions.ends.size() == 2 && found.extensions[0] == "jpg");
  CHECK((found.sample == std::vector<std::int64_t>{0, 0, 1, 1, 2}));
  CHECK((found.extension == std::vector<std::int32_t>{0, 1, 0, 1, 0}));
  CHECK((found.length == std::vector<std::int64_t>{700, 3, 0, 2, 2}));
  CHECK((found.label_value == std::vector<std::int64_t>{12, -3}));
  CHECK(bytes.substr(static_cast<std::size_t>(found.offset[4]), 2) == "yz");
}

void many_keys_are_told_apart() {
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += tar_member(std::to_string(i) + ".x", "");
  CHECK(walk(bytes + end).at.size() == 5000);
  for (const auto* again : {"0.x", "999.x", "1234.x", "4999.x"}) {
    const auto found = walk(bytes + tar_member("between.x", "") + tar_member(again, "") + end);
    CHECK(found.parse_error && found.parse_error->offset == bytes.size() + 512);
  }
}

void every_cut_is_seen() {
  const std::string bytes = several();
  for (std::size_t n = 0; n + 1024 < bytes.size(); ++n) {
    const tar::Walk found = walk(std::string_view(bytes).substr(0, n));
    CHECK(found.parse_error && found.parse_error->offset <= n);
  }
}

void no_changed_byte_gives_bytes_beyond_the_file() {
  std::string bytes = several();
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (const int change : {0x01, 0x80, 0xff}) {
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      const tar::Walk found = walk(bytes);
      for (std::size_t i = 0; i < found.offset.size(); ++i)
        CHECK(static_cast<std::size_t>(found.offset[i] + found.length[i]) <= bytes.size());
      bytes[at] = static_cast<char>(bytes[at] ^ change);
    }
}

void failed_reads_are_no_flaws() {
  const std::string bytes = several();
  MemorySource source(bytes);
  source.error = 5;
  const tar::Walk found = tar::walk(source, ReadPolicy::local(), {});
  CHECK(found.read_error == 5);
}

// Enough members for columns to grow; extensions come in their order, in another, and now and then.
void many_members_in_any_order() {
  const std::string extensions[] = {"jpg", "cls", "txt"};
  std::string bytes;
  tar::Walk expected;
  for (int sample = 0; sample < 3000; ++sample)
    for (int i = 0; i < 3; ++i) {
      const int extension = sample == 0 || sample % 7 < 3 ? i : 2 - i;
      if (sample % 5 == 4 && extension == 1) continue;
      const auto number = std::to_string(10000 + sample);
      const std::string data(static_cast<std::size_t>(sample % 600), 'x');
      expected.sample.push_back(sample);
      expected.extension.push_back(extension);
      expected.offset.push_back(static_cast<std::int64_t>(bytes.size()) + 512);
      expected.length.push_back(static_cast<std::int64_t>(data.size()));
      bytes += tar_member(number + "." + extensions[extension], data);
    }
  const tar::Walk found = walk(bytes + std::string(1024, '\0'));
  CHECK(!found.parse_error && found.at.size() == 3000 && found.extensions.ends.size() == 3);
  CHECK(found.sample == expected.sample && found.extension == expected.extension);
  CHECK(found.offset == expected.offset && found.length == expected.length);
  CHECK(found.keys[0] == "10000" && found.keys[2999] == "12999");
}

// Some old writers summed signed bytes.
void sums_are_of_unsigned_or_signed_bytes() {
  for (int first = 1; first < 256; first += 27) {
    std::string block = tar_member(std::string(90, static_cast<char>(first)), "");
    unsigned sum = 0, high = 0;
    for (std::size_t i = 0; i < 512; ++i) {
      const auto byte = i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(block[i]);
      sum += byte;
      high += byte >= 128;
    }
    for (const unsigned stored : {sum, sum - 256 * high, sum + 1}) {
      char field[8];
      std::snprintf(field, sizeof field, "%06o", stored & 0777777u);
      block.replace(148, 7, field, 7);
      const bool right = stored == sum || (stored == sum - 256 * high && sum >= 256 * high);
      CHECK(tar::checksum_matches(reinterpret_cast<const std::byte*>(block.data())) == right);
    }
  }
}

}  // namespace

int main() {
  members_form_samples();
  many_keys_are_told_apart();
  every_cut_is_seen();
  no_changed_byte_gives_bytes_beyond_the_file();
  failed_reads_are_no_flaws();
  many_members_in_any_order();
  sums_are_of_unsigned_or_signed_bytes();
}
