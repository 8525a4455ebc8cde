// Any bytes as JSON lines: what is taken is whole and inside the text, and the same however the lines
// lie in memory. Mutations put tokens of JSON into the lines, besides those of libFuzzer.
#include "index/json_fields.hpp"

#include <cstring>
#include <memory>
#include <random>

#include "fuzz/require.hpp"

using namespace penstock;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

namespace {

// A line is parsed twice, with dozens of allocations. The parser's own limits are nearer: strings are
// looked at in pieces of 64 bytes, values lie 200 deep, and lines share no more than their columns.
constexpr std::size_t input_bytes_max = 1024, lines_max = 16;

std::size_t cut_lines(const std::uint8_t* data, std::size_t size) {
  size = std::min(size, input_bytes_max);
  std::size_t lines = 0;
  for (std::size_t at = 0; at < size; ++at)
    if (data[at] == '\n' && ++lines == lines_max) return at;
  return size;
}

std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t size_max, unsigned seed) {
  static constexpr std::string_view tokens[] = {
      "{", "}", "[", "]", ",", ":", "\"s\":", "\"i\":", "\"f\":", "\"b\":", "\"l\":", "\"m\":",
      "\"a\":", "null", "true", "false", "\"\"", "\"x\\n\"", "\\u00e9", "\\ud83d\\ude00", "\\ud800",
      "\xc3\xa9", "\xed\xa0\x80", "\xf0\x9f\x98\x80", "-", "0", "1.5", "e9", "9223372036854775807",
      "{\"s\":\"x\",\"i\":1,\"f\":0.5,\"b\":true,\"l\":[1,2],\"m\":[0.5],\"a\":{}}\n", "\n", " ",
      "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""};
  std::minstd_rand random(seed);
  const std::string_view token = tokens[random() % std::size(tokens)];
  const std::size_t at = random() % (size + 1);
  switch (random() % 4) {
    case 0: return LLVMFuzzerMutate(data, size, size_max);
    case 1: {  // a token instead of some bytes
      const std::size_t cut = random() % (std::min<std::size_t>(size - at, 8) + 1);
      if (size - cut + token.size() > size_max) return LLVMFuzzerMutate(data, size, size_max);
      std::memmove(data + at + token.size(), data + at + cut, size - at - cut);
      std::memcpy(data + at, token.data(), token.size());
      return size - cut + token.size();
    }
    case 2: {  // a piece twice
      const std::size_t twice = random() % (size - at + 1);
      if (size + twice > size_max) return LLVMFuzzerMutate(data, size, size_max);
      std::memmove(data + at + twice, data + at, size - at);
      return size + twice;
    }
    default: {  // a piece less
      const std::size_t cut = random() % (size - at + 1);
      std::memmove(data + at, data + at + cut, size - at - cut);
      return size - cut;
    }
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t size_max, unsigned seed) {
  size_max = std::min(size_max, input_bytes_max);
  return cut_lines(data, mutate(data, cut_lines(data, size), size_max, seed));
}

namespace {

const std::vector<json::Field> fields{
    {"s", json::Kind::text},   {"i", json::Kind::whole},     {"f", json::Kind::fraction},
    {"b", json::Kind::boolean}, {"l", json::Kind::wholes}, {"m", json::Kind::fractions},
    {"a", json::Kind::any},    {"s", json::Kind::any}};

void require_same(const json::Column& one, std::size_t row, const json::Column& other,
                  std::int64_t shift) {
  require(one.absent[row] == other.absent[0]);
  if (!one.text.empty()) {
    const auto a = one.text[row].bytes, b = other.text[0].bytes;
    require(std::string_view(a.data(), a.size()) == std::string_view(b.data(), b.size()));
    require(one.text[row].characters == other.text[0].characters);
  }
  if (one.kind == json::Kind::whole) require(one.whole[row] == other.whole[0]);
  if (one.kind == json::Kind::boolean) require(one.boolean[row] == other.boolean[0]);
  if (one.kind == json::Kind::fraction)
    require(std::memcmp(&one.fraction[row], &other.fraction[0], 8) == 0);
  if (!one.begin.empty()) require(one.end[row] - one.begin[row] == other.end[0] - other.begin[0]);
  if (one.kind == json::Kind::any && one.end[row] != 0)
    require(one.begin[row] - shift == other.begin[0]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = contents(data, size);
  std::vector<std::int64_t> bounds{0};
  for (std::size_t at = 0; at < size; ++at)
    if (bytes[at] == '\n') bounds.push_back(static_cast<std::int64_t>(at) + 1);
  bounds.push_back(static_cast<std::int64_t>(size));
  const auto rows = json::parse_lines({bytes.data(), size}, bounds, fields);
  std::size_t left = 0;
  for (std::size_t row = 0; row + 1 < bounds.size(); ++row) {
    const auto begin = static_cast<std::size_t>(bounds[row]);
    const auto length = static_cast<std::size_t>(bounds[row + 1]) - begin;
    // Exactly as large as the line, so that a read beyond it is found.
    const auto line = std::make_unique_for_overwrite<char[]>(length);
    std::copy_n(bytes.data() + begin, length, line.get());
    const std::int64_t ends[] = {0, static_cast<std::int64_t>(length)};
    const auto alone = json::parse_lines({line.get(), length}, ends, fields);
    const bool is_left = left < rows.left_over.size() &&
                         rows.left_over[left] == static_cast<std::int64_t>(row);
    left += is_left;
    require(is_left == !alone.left_over.empty());
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const auto& column = rows.columns[i];
      require(column.absent.size() + 1 == bounds.size());
      require_same(column, row, alone.columns[i], bounds[row]);
      if (is_left) require(column.absent[row] == 1);
      if (column.kind != json::Kind::text) continue;
      const auto measured = measure_utf8(column.text[row].bytes);
      require(measured && measured->characters == column.text[row].characters);
      require(measured->unit_bytes() == column.text[row].unit_bytes());
      const auto units =
          std::make_unique_for_overwrite<char[]>(measured->characters * measured->unit_bytes());
      widen_utf8(*measured, units.get());
    }
  }
  require(left == rows.left_over.size());
  return 0;
}
