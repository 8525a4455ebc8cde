// Fields of JSON lines: the wanted values of each line's object, without objects for the others.
//
// A line is taken only if all of it is JSON: values that nobody wants are checked like the others,
// strings with their UTF-8 and escapes. A line that is broken, or holds a value that its column
// cannot take, is *left over*: the caller looks at it by itself. So are a few that are valid, but
// rare: very deep nesting, and numbers near the ends of what a double holds.
//
// No library does it: simdjson's on-demand interface does not check what it skips, and no package that
// a build of wheels without network could ask for has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ground/utf8.hpp"

namespace penstock::json {

enum class Kind : std::uint8_t { text, whole, fraction, boolean, wholes, fractions, any };

struct Field {
  std::string key;
  Kind kind;
};

// Values of a field, a row a line. Only the vectors of its kind are filled.
struct Column {
  Kind kind{};
  std::vector<std::uint8_t> absent;      // 1 where the object has no such key, or null
  std::vector<Utf8Text> text;            // views of the lines, or of `Rows::unescaped`
  std::vector<std::int64_t> whole;       // also the elements of `wholes`
  std::vector<double> fraction;          // also the elements of `fractions`
  std::vector<std::uint8_t> boolean;
  std::vector<std::int64_t> begin, end;  // lists: of the elements; any: of the value in the text
};

struct Rows {
  std::vector<Column> columns;
  std::vector<std::int64_t> left_over;  // ascending; their values are empty
  std::vector<std::unique_ptr<char[]>> unescaped;
};

// Parse the lines text[bounds[i]:bounds[i+1]]. Several fields may have one key. Of a key that
// comes twice in an object the last value counts. std::out_of_range if bounds leave the text.
Rows parse_lines(std::span<const char> text, std::span<const std::int64_t> bounds,
                 std::span<const Field> fields);

// Place of the first quote, backslash or control character, or `end`. `high` gets bits of all
// bytes before that, and perhaps of some behind it, so that bit 7 is clear only if all are ASCII.
using FindSpecial = const char* (*)(const char* at, const char* end, unsigned& high);

struct SpecialFinder {
  std::string_view name;
  FindSpecial find;
};

// The implementations that this processor runs, the fastest first. All give the same places.
std::vector<SpecialFinder> list_special_finders();

}  // namespace penstock::json
