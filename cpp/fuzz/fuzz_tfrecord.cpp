// Any bytes as a TFRecord file, and as the tf.Example in a well-framed record.
#include "index/walk_tfrecord.hpp"

#include <string>

#include "ground/crc32c.hpp"
#include "fuzz/require.hpp"

using namespace penstock;
using tfrecord::Check;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  std::string bytes(contents(data + 1, size - 1));
  if ((how & 1) != 0) {
    std::string head;
    for (int i = 0; i < 8; ++i) head += static_cast<char>(std::uint64_t{bytes.size()} >> (8 * i));
    const auto mask_text = [](const std::string& text) {
      const auto crc = tfrecord::mask_crc(crc32c(std::as_bytes(std::span(text))));
      std::string out;
      for (int i = 0; i < 4; ++i) out += static_cast<char>(crc >> (8 * i));
      return out;
    };
    bytes = head + mask_text(head) + bytes + mask_text(bytes);
  }
  tfrecord::Options options;
  options.check = (how & 2) != 0 ? Check::all : (how & 4) != 0 ? Check::none : Check::length;
  if ((how & 8) != 0) options.features = {"a", "image", "label"};
  MemorySource source(bytes);
  const auto found =
      tfrecord::walk(source, (how & 32) != 0 ? small_policy : ReadPolicy::local(), options);
  require(found.read_error == 0);
  require_inside(found.parse_error, bytes.size());
  require_inside(found.offset, found.length, bytes.size());
  const auto& f = found.features;
  if (found.parse_error) return 0;
  require(f.kind.size() == options.features.size() * found.offset.size());
  for (std::size_t i = 0; i < f.kind.size(); ++i) {
    if (f.offset[i] < 0) continue;
    const auto record = i / options.features.size();
    require(f.length[i] >= 0 && f.offset[i] >= found.offset[record]);
    require(f.offset[i] + f.length[i] <= found.offset[record] + found.length[record]);
  }
  return 0;
}
