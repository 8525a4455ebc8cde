// Any bytes as a RecordIO file.
#include "index/walk_recordio.hpp"

#include <string>

#include "fuzz/require.hpp"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  const std::string bytes(contents(data + 1, size - 1));
  const recordio::Options options{(how & 3) != 0, (how & 1) != 0};
  MemorySource source(bytes);
  const auto found =
      recordio::walk(source, (how & 32) != 0 ? small_policy : ReadPolicy::local(), options);
  require(found.read_error == 0);
  require_inside(found.parse_error, bytes.size());
  require_inside(found.offset, found.length, bytes.size());
  require(found.first.back() == static_cast<std::int64_t>(found.offset.size()));
  require(found.at.size() + 1 == found.first.size());
  if (options.header) require(found.label.size() == found.at.size() || found.parse_error);
  for (std::size_t i = 1; i < found.first.size(); ++i)
    require(found.first[i] >= found.first[i - 1]);
  return 0;
}
