// Any bytes as an LMDB environment. Page numbers and counters are made right first where the first
// byte asks for it: mutations alone seldom pass them.
#include "index/walk_lmdb.hpp"

#include <cstring>
#include <string>

#include "fuzz/require.hpp"

using namespace penstock;

namespace {

template <typename T>
T field(const std::string& bytes, std::size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Each page that is none of an overflow run's inner ones carries its number; the others hold
// values, of which no walker knows anything.
void number_pages(std::string& bytes) {
  const std::size_t header = field<std::uint32_t>(bytes, 16) == 0xBEEFC0DE ? 16 : 24;
  const std::size_t page = field<std::uint32_t>(bytes, header + 24);
  if (page < 512 || page > 65536) return;
  for (std::uint64_t number = 0; number * page + header <= bytes.size(); ++number)
    std::memcpy(bytes.data() + number * page, &number, sizeof number);
}

// The counter that a walk found wrong becomes what it counted.
bool correct_counter(std::string& bytes, const ParseError& error) {
  const std::string start = "the database says ", middle = " and has ";
  const std::size_t found = error.message.rfind(middle);
  if (error.message.compare(0, start.size(), start) != 0 || found == std::string::npos) return false;
  const std::uint64_t counted = std::stoull(error.message.substr(found + middle.size()));
  require(error.offset + sizeof counted <= bytes.size());
  std::memcpy(bytes.data() + error.offset, &counted, sizeof counted);
  return true;
}

lmdb::Walk walk(const std::string& bytes, const lmdb::Options& options) {
  MemorySource source(bytes);
  return lmdb::walk(source, options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  std::string bytes(contents(data + 1, size - 1));
  lmdb::Options options;
  options.threads = 1;
  if ((how & 2) != 0) options.database = "named";
  options.verify = (how & 4) != 0 ? lmdb::Verify::off : lmdb::Verify::on;
  options.datum = (how & 8) != 0;
  options.file_order = (how & 16) != 0;
  if ((how & 32) != 0) options.exclude = {"__keys__", "__len__", "key 001"};
  options.concurrent = (how & 64) == 0;
  if ((how & 1) != 0) number_pages(bytes);
  lmdb::Walk found = walk(bytes, options);
  for (int more = 8; (how & 1) != 0 && more > 0 && found.parse_error; --more) {
    if (!correct_counter(bytes, *found.parse_error)) break;
    found = walk(bytes, options);
  }
  require(found.read_error == 0);
  if (found.parse_error) {
    require(found.parse_error->offset <= bytes.size() && !found.parse_error->message.empty());
    return 0;
  }
  require(found.key_ends.size == found.offset.size && found.length.size == found.offset.size);
  require(found.offset.size <= found.entries);
  require(!options.datum || found.label.size == found.offset.size);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < found.offset.size; ++i) {
    require(found.offset[i] >= 0 && found.length[i] >= 0);
    require(static_cast<std::uint64_t>(found.offset[i] + found.length[i]) <= bytes.size());
    require(found.key_ends[i] > end);
    end = found.key_ends[i];
    if (options.file_order && !options.datum && i > 0) require(found.offset[i] > found.offset[i - 1]);
  }
  require(static_cast<std::size_t>(end) == found.keys.size);
  return 0;
}
