// An LMDB environment with changed words, or any bytes as one.
//
// An input is one byte that says how, then patches of five bytes: place, kind and value. No
// mutation would find a tree, so the patches change one that is there.
#include "walk_lmdb.hpp"

#include <array>
#include <cstring>
#include <string>

#include "../tests/lmdb_writer.hpp"
#include "walked.hpp"

using namespace penstock;

namespace {

std::string environment(unsigned version, bool named) {
  LmdbWriter::Pairs pairs;
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t bytes = i % 20 == 5 ? 600 : i % 9;
    pairs.emplace_back(
        std::to_string(100 + i),
        i % 2 ? "\x22" + std::string(1, static_cast<char>(i)) + std::string(i, 'x') + "\x28\x07"
              : std::string(bytes, 'y'));
  }
  LmdbWriter writer(version);
  return named ? writer.write_named({{"one", pairs}, {"two", {}}}) : writer.write(pairs);
}

const std::array<std::string, 6> environments = {environment(1, false), environment(2, false),
                                                 environment(3, false), environment(1, true),
                                                 environment(2, true),  environment(3, true)};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint8_t how = data[0], chosen = data[1] & 7;
  data += 2;
  size -= 2;
  std::string bytes;
  if (chosen >= environments.size()) {
    bytes = contents(data, size);
  } else {
    bytes = environments[chosen];
    for (; size >= 5; data += 5, size -= 5) {
      std::uint16_t at = 0, value = 0;
      std::memcpy(&at, data, 2);
      std::memcpy(&value, data + 2, 2);
      const std::size_t width = std::size_t{1} << (data[4] & 3);
      const std::uint64_t wide = (data[4] & 4) != 0 ? ~std::uint64_t{value} : value;
      if ((data[4] & 0xf8) == 0xf8) bytes.resize(at % bytes.size() + 1);
      if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &wide, width);
    }
  }
  lmdb::Options options;
  options.threads = 1;
  options.datum = (how & 1) != 0;
  options.file_order = (how & 2) != 0;
  options.concurrent = (how & 4) == 0;
  if ((how & 8) != 0) options.database = (how & 16) != 0 ? "one" : "";
  if ((how & 32) != 0) options.verify = lmdb::Verify::off;
  if ((how & 64) != 0) options.exclude = {"100", "101"};
  MemorySource source(bytes);
  const lmdb::Walk found = lmdb::walk(source, options);
  require(found.error == 0);
  require_inside(found.flaw, bytes.size());
  if (found.flaw) return 0;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < found.offset.size; ++i) {
    require(found.offset[i] >= 0 && found.length[i] >= 0);
    require(static_cast<std::uint64_t>(found.offset[i] + found.length[i]) <= bytes.size());
    require(found.key_ends[i] > end);
    end = found.key_ends[i];
  }
  require(static_cast<std::size_t>(end) == found.keys.size);
  require(found.offset.size <= bytes.size() / 8);
  return 0;
}
