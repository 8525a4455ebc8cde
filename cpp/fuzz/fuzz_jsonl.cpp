// Any bytes as a JSONL file: lines in their order, without newlines, whatever the blocks are.
#include "index/walk_jsonl.hpp"

#include "fuzz/require.hpp"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes = contents(data + 1, size - 1);
  MemorySource source(bytes), other(bytes);
  const auto found = jsonl::walk(source, ReadPolicy::local());
  const auto same = jsonl::walk(other, {1 + std::size_t{data[0]}, 16, 0});
  require(found.read_error == 0 && !found.parse_error);
  require(found.offset == same.offset && found.length == same.length);
  require_inside(found.offset, found.length, bytes.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < found.offset.size(); ++i) {
    const auto offset = static_cast<std::size_t>(found.offset[i]);
    const auto length = static_cast<std::size_t>(found.length[i]);
    require(offset >= end && length > 0);
    // Between lines there are only blanks, ends of lines, and the mark at the start.
    for (std::size_t at = end == 0 && bytes.starts_with("\xef\xbb\xbf") ? 3 : end; at < offset; ++at)
      require(std::string_view(" \t\r\n").find(bytes[at]) != std::string_view::npos);
    require(bytes.substr(offset, length).find('\n') == std::string_view::npos);
    end = offset + length;
  }
  return 0;
}
