// Any bytes as a tar archive. Checksums are made right first, since no mutation finds them.
#include "index/walk_tar.hpp"

#include <cstdio>
#include <string>

#include "fuzz/require.hpp"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  std::string bytes(contents(data + 1, size - 1));
  if ((how & 1) != 0) {
    for (std::size_t at = 0; at + 512 <= bytes.size(); at += 512) {
      if (bytes[at] == '\0' || bytes.compare(at + 257, 5, "ustar") != 0) continue;
      bytes.replace(at + 148, 8, "        ");
      unsigned sum = 0;
      for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[at + i]);
      char number[8];
      std::snprintf(number, sizeof number, "%06o", sum & 0777777);
      bytes.replace(at + 148, 7, number, 7);
    }
  }
  tar::Options options;
  options.ignore_zeros = (how & 2) != 0;
  options.end_required = (how & 4) != 0;
  options.duplicates = (how & 8) != 0;
  if ((how & 16) != 0) options.label = "cls";
  MemorySource source(bytes);
  const tar::Walk found =
      tar::walk(source, (how & 32) != 0 ? small_policy : ReadPolicy::local(), options);
  require(found.read_error == 0);
  require_inside(found.parse_error, bytes.size());
  if (found.parse_error) return 0;
  require_inside(found.offset, found.length, bytes.size());
  require(found.sample.size() == found.offset.size());
  require(found.keys.ends.size() == found.at.size());
  require(found.labels.ends.size() == found.label_value.size());
  for (std::size_t i = 0; i < found.sample.size(); ++i) {
    require(found.sample[i] >= (i == 0 ? 0 : found.sample[i - 1]));
    require(found.sample[i] < static_cast<std::int64_t>(found.at.size()));
    require(found.extension[i] < static_cast<std::int32_t>(found.extensions.ends.size()));
  }
  return 0;
}
