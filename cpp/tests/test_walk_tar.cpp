// Archives written byte by byte: grouping, names, labels; every cut and every changed byte.
#include "walk_tar.hpp"

#include <string>

#include "check.hpp"
#include "memory_source.hpp"
#include "tar_writer.hpp"

using penstock::MemorySource;
using penstock::Reach;
using penstock::tar_member;
namespace tar = penstock::tar;

namespace {

const std::string end(1024, '\0');

tar::Walk walk(std::string_view bytes, const tar::Options& options = {}) {
  MemorySource source(bytes);
  return tar::walk(source, Reach::local(), options);
}

std::string name(const tar::Blob& blob, std::size_t i) {
  const auto start = i == 0 ? 0 : static_cast<std::size_t>(blob.ends[i - 1]);
  return blob.text.substr(start, static_cast<std::size_t>(blob.ends[i]) - start);
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
  CHECK(!found.flaw && found.error == 0 && found.dropped == 1);
  CHECK(found.at.size() == 3);
  CHECK(name(found.keys, 0) == "d/a" && name(found.keys, 1) == "d/b");
  CHECK(name(found.keys, 2) == std::string(150, 'n'));
  CHECK(found.extensions.ends.size() == 2 && name(found.extensions, 0) == "jpg");
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
    CHECK(found.flaw && found.flaw->offset == bytes.size() + 512);
  }
}

void every_cut_is_seen() {
  const std::string bytes = several();
  for (std::size_t n = 0; n + 1024 < bytes.size(); ++n) {
    const tar::Walk found = walk(std::string_view(bytes).substr(0, n));
    CHECK(found.flaw && found.flaw->offset <= n);
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
  const tar::Walk found = tar::walk(source, Reach::local(), {});
  CHECK(found.error == 5);
}

}  // namespace

int main() {
  members_form_samples();
  many_keys_are_told_apart();
  every_cut_is_seen();
  no_changed_byte_gives_bytes_beyond_the_file();
  failed_reads_are_no_flaws();
}
