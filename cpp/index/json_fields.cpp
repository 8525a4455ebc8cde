#include "index/json_fields.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string_view>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ground/processor.hpp"

namespace penstock::json {
namespace {

constexpr int depth_max = 200;             // of values that nobody wants; deeper ones are left over
constexpr std::size_t block_bytes = 64 * 1024;  // of memory for strings without their escapes
constexpr std::size_t digits_max = 100;    // before the point; with two of the exponent, no infinity

bool is_special(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

const char* find_special_plain(const char* at, const char* end, unsigned& high) {
  for (; at < end && !is_special(*at); ++at) high |= static_cast<unsigned char>(*at);
  return at;
}

#if defined(__x86_64__)
constexpr std::ptrdiff_t long_bytes = 64;  // of a string, from which a call by pointer is worth it
struct Marks {
  unsigned special, high;
};

Marks mark_sse2(const char* at) {
  const auto piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const auto control = _mm_set1_epi8(0x1f);
  const auto special = _mm_or_si128(
      _mm_or_si128(_mm_cmpeq_epi8(piece, _mm_set1_epi8('"')),
                   _mm_cmpeq_epi8(piece, _mm_set1_epi8('\\'))),
      _mm_cmpeq_epi8(_mm_min_epu8(piece, control), piece));
  return {static_cast<unsigned>(_mm_movemask_epi8(special)),
          static_cast<unsigned>(_mm_movemask_epi8(piece))};
}

const char* find_special_sse2(const char* at, const char* end, unsigned& high) {
  for (; end - at >= 16; at += 16) {
    const Marks marks = mark_sse2(at);
    if (marks.high != 0) high |= 0x80;
    if (marks.special != 0) return at + std::countr_zero(marks.special);
  }
  return find_special_plain(at, end, high);
}

__attribute__((target("avx2"))) const char* find_special_avx2(const char* at, const char* end,
                                                              unsigned& high) {
  const auto quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\');
  const auto control = _mm256_set1_epi8(0x1f);
  auto seen = _mm256_setzero_si256();
  for (; end - at >= 32; at += 32) {
    const auto piece = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    seen = _mm256_or_si256(seen, piece);
    const auto special = _mm256_or_si256(
        _mm256_or_si256(_mm256_cmpeq_epi8(piece, quote), _mm256_cmpeq_epi8(piece, backslash)),
        _mm256_cmpeq_epi8(_mm256_min_epu8(piece, control), piece));
    const auto marks = static_cast<unsigned>(_mm256_movemask_epi8(special));
    if (marks != 0) {
      if (_mm256_movemask_epi8(seen) != 0) high |= 0x80;
      return at + std::countr_zero(marks);
    }
  }
  if (_mm256_movemask_epi8(seen) != 0) high |= 0x80;
  return find_special_plain(at, end, high);
}
#endif

const char* find_special(const char* at, const char* end, unsigned& high) {
  static const FindSpecial find_far = list_special_finders().front().find;
#if defined(__x86_64__)
  for (const char* near = at + std::min(end - at, long_bytes); near - at >= 16; at += 16) {
    const Marks marks = mark_sse2(at);
    if (marks.high != 0) high |= 0x80;
    if (marks.special != 0) return at + std::countr_zero(marks.special);
  }
#endif
  return find_far(at, end, high);
}

// Parses one line after the other to a row of the columns.
class LineParser {
 public:
  LineParser(std::span<const Field> fields, std::span<const char> text, Rows& out)
      : fields_(fields), text_(text.data()), text_end_(text.data() + text.size()), out_(out) {}

  // Parse a line to the last row; false if it is left over.
  bool parse(const char* begin, const char* end) {
    at_ = begin;
    end_ = end;
    skip_space();
    if (!take('{') || !parse_members()) return false;
    skip_space();
    return at_ == end_;
  }

 private:
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (static_cast<std::size_t>(end_ - at_) < word.size() ||
        std::memcmp(at_, word.data(), word.size()) != 0)
      return false;
    at_ += word.size();
    return true;
  }

  bool parse_members() {
    skip_space();
    if (take('}')) return true;
    do {
      skip_space();
      std::string_view key;
      if (!take('"') || !parse_key(key)) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!parse_member(key)) return false;
      skip_space();
    } while (take(','));
    return take('}');
  }

  // Parse the value of a key, for all fields that want it.
  bool parse_member(std::string_view key) {
    const char* begin = at_;
    bool wanted = false;
    for (std::size_t number = 0; number < fields_.size(); ++number) {
      if (fields_[number].key != key) continue;
      at_ = begin;
      wanted = true;
      if (!parse_wanted(out_.columns[number])) return false;
    }
    return wanted || skip_value(0);
  }

  bool parse_key(std::string_view& key) {
    const char* begin = at_;
    unsigned high = 0;
    at_ = find_special(at_, end_, high);
    if (at_ < end_ && *at_ == '"' && (high & 0x80) == 0) {
      key = {begin, static_cast<std::size_t>(at_++ - begin)};
      return true;
    }
    at_ = begin;
    Utf8Text text;
    if (!parse_string(text)) return false;
    key = {text.bytes.data(), text.bytes.size()};
    return true;
  }

  bool parse_wanted(Column& column) {
    const std::size_t row = column.absent.size() - 1;
    if (at_ < end_ && *at_ == 'n') {
      column.absent[row] = 1;
      return take_word("null");
    }
    column.absent[row] = 0;
    switch (column.kind) {
      case Kind::text: return take('"') && parse_string(column.text[row]);
      case Kind::whole: return parse_whole(column.whole[row]);
      case Kind::fraction: return parse_fraction(column.fraction[row]);
      case Kind::boolean:
        column.boolean[row] = at_ < end_ && *at_ == 't';
        return take_word(column.boolean[row] != 0 ? "true" : "false");
      case Kind::wholes:
        return parse_list(column, column.whole, [this](std::int64_t& one) { return parse_whole(one); });
      case Kind::fractions:
        return parse_list(column, column.fraction, [this](double& one) { return parse_fraction(one); });
      case Kind::any:
        column.begin[row] = at_ - text_;
        if (!skip_value(0)) return false;
        column.end[row] = at_ - text_;
        return true;
    }
    return false;
  }

  // Elements of a key that came before are dropped.
  template <class T, class Parse>
  bool parse_list(Column& column, std::vector<T>& values, Parse parse) {
    values.resize(static_cast<std::size_t>(column.begin.back()));
    if (!take('[')) return false;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        T value;
        if (!parse(value)) return false;
        values.push_back(value);
        skip_space();
      } while (take(','));
      if (!take(']')) return false;
    }
    column.end.back() = static_cast<std::int64_t>(values.size());
    return true;
  }

  // Skip a number's digits, point and exponent; `whole` if it has neither of these.
  bool skip_number(bool& whole) {
    const char* begin = at_;
    if (at_ < end_ && *at_ == '-') ++at_;
    const char* digits = at_;
    while (at_ < end_ && is_digit(*at_)) ++at_;
    const auto count = static_cast<std::size_t>(at_ - digits);
    if (count == 0 || count > digits_max || (*digits == '0' && count > 1)) return false;
    whole = true;
    if (take('.')) {
      whole = false;
      const char* first = at_;
      while (at_ < end_ && is_digit(*at_)) ++at_;
      if (at_ == first) return false;
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      whole = false;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      const char* first = at_;
      while (at_ < end_ && is_digit(*at_)) ++at_;
      if (at_ == first || at_ - first > 2) return false;
    }
    return at_ > begin;
  }

  bool parse_whole(std::int64_t& value) {
    const char* begin = at_;
    bool whole = false;
    return skip_number(whole) && whole && std::from_chars(begin, at_, value).ec == std::errc();
  }

  bool parse_fraction(double& value) {
    const char* begin = at_;
    bool whole = false;
    if (!skip_number(whole) || std::from_chars(begin, at_, value).ec != std::errc()) return false;
    if (whole && std::abs(value) >= 0x1p53) return false;  // a double may not hold it
    if (whole && value == 0) value = 0;  // a whole number has no negative zero
    return true;
  }

  // Parse a string behind its first quote.
  bool parse_string(Utf8Text& text) {
    const char* begin = at_;
    unsigned high = 0;
    at_ = find_special(at_, end_, high);
    if (at_ == end_) return false;
    std::span<const char> bytes(begin, at_);
    if (*at_ == '\\') {
      if (!unescape(begin, bytes, high)) return false;
    } else if (*at_ != '"') {
      return false;
    }
    ++at_;
    return measure(bytes, high, text);
  }

  static bool measure(std::span<const char> bytes, unsigned high, Utf8Text& text) {
    if ((high & 0x80) == 0) {
      text = {bytes, bytes.size(), 0};
      return true;
    }
    const auto measured = measure_utf8(bytes);
    if (measured) text = *measured;
    return measured.has_value();
  }

  // Copy a string to memory of its own, without escapes, up to its last quote. An escape is never
  // shorter than what it stands for, and the string ends before the line.
  bool unescape(const char* begin, std::span<const char>& bytes, unsigned& high) {
    char* const out = take_room(begin);
    char* to = std::copy(begin, at_, out);
    while (at_ != end_ && *at_ != '"') {
      if (*at_ != '\\' || end_ - at_ < 2 || !unescape_one(to, high)) return false;
      const char* next = find_special(at_, end_, high);
      to = std::copy(at_, next, to);
      at_ = next;
    }
    bytes = {out, to};
    used_ += bytes.size();
    return at_ != end_;
  }

  // Memory for the bytes from `begin` to the line's end, of which `used_` counts those that were used.
  // No block is larger than the text from there on, which is all that may still come.
  char* take_room(const char* begin) {
    const auto bytes = static_cast<std::size_t>(end_ - begin);
    if (block_ - used_ < bytes) {
      block_ = std::max(bytes, std::min(block_bytes, static_cast<std::size_t>(text_end_ - begin)));
      used_ = 0;
      out_.unescaped.push_back(std::make_unique_for_overwrite<char[]>(block_));
    }
    return out_.unescaped.back().get() + used_;
  }

  bool unescape_one(char*& to, unsigned& high) {
    constexpr std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
    const char name = at_[1];
    at_ += 2;
    if (name != 'u') {
      const std::size_t found = names.find(name);
      if (found == names.npos) return false;
      *to++ = values[found];
      return true;
    }
    std::uint32_t code = 0;
    if (!take_hex(code) || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      std::uint32_t low = 0;
      if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') return false;
      at_ += 2;
      if (!take_hex(low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code < 0x80) {
      *to++ = static_cast<char>(code);
      return true;
    }
    high |= 0x80;
    if (code >= 0x10000) *to++ = static_cast<char>(0xf0 | code >> 18);
    if (code >= 0x800)
      *to++ = static_cast<char>(code >= 0x10000 ? 0x80 | (code >> 12 & 0x3f) : 0xe0 | code >> 12);
    *to++ = static_cast<char>(code >= 0x800 ? 0x80 | (code >> 6 & 0x3f) : 0xc0 | code >> 6);
    *to++ = static_cast<char>(0x80 | (code & 0x3f));
    return true;
  }

  bool take_hex(std::uint32_t& code) {
    if (end_ - at_ < 4) return false;
    const auto [last, error] = std::from_chars(at_, at_ + 4, code, 16);
    if (error != std::errc() || last != at_ + 4) return false;
    at_ += 4;
    return true;
  }

  // Check a string behind its first quote.
  bool skip_string() {
    const char* begin = at_;
    unsigned high = 0;
    while (true) {
      at_ = find_special(at_, end_, high);
      if (at_ == end_ || (*at_ != '"' && *at_ != '\\')) return false;
      if (*at_ == '"') break;
      if (end_ - at_ < 2) return false;
      char room[4];
      char* to = room;
      unsigned escaped = 0;
      if (!unescape_one(to, escaped)) return false;
    }
    Utf8Text text;
    return measure({begin, at_++}, high, text);
  }

  bool skip_value(int depth) {
    if (at_ == end_) return false;
    switch (*at_) {
      case '"': ++at_; return skip_string();
      case 't': return take_word("true");
      case 'f': return take_word("false");
      case 'n': return take_word("null");
      case '[': ++at_; return depth < depth_max && skip_elements(']', depth + 1);
      case '{': ++at_; return depth < depth_max && skip_elements('}', depth + 1);
      default: {
        bool whole = false;
        return skip_number(whole);
      }
    }
  }

  bool skip_elements(char last, int depth) {
    skip_space();
    if (take(last)) return true;
    do {
      skip_space();
      if (last == '}') {
        if (!take('"') || !skip_string()) return false;
        skip_space();
        if (!take(':')) return false;
        skip_space();
      }
      if (!skip_value(depth)) return false;
      skip_space();
    } while (take(','));
    return take(last);
  }

  std::span<const Field> fields_;
  const char* text_;
  const char* text_end_;
  Rows& out_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::size_t block_ = 0, used_ = 0;
};

void reserve_rows(Column& column, Kind kind, std::size_t rows) {
  column.kind = kind;
  column.absent.reserve(rows);
  switch (kind) {
    case Kind::text: column.text.reserve(rows); break;
    case Kind::whole: column.whole.reserve(rows); break;
    case Kind::fraction: column.fraction.reserve(rows); break;
    case Kind::boolean: column.boolean.reserve(rows); break;
    case Kind::wholes:
    case Kind::fractions:
    case Kind::any:
      column.begin.reserve(rows);
      column.end.reserve(rows);
      break;
  }
}

void add_row(Column& column) {
  column.absent.push_back(1);
  switch (column.kind) {
    case Kind::text: column.text.emplace_back(); break;
    case Kind::whole: column.whole.push_back(0); break;
    case Kind::fraction: column.fraction.push_back(0); break;
    case Kind::boolean: column.boolean.push_back(0); break;
    case Kind::wholes:
    case Kind::fractions: {
      const std::int64_t start = column.end.empty() ? 0 : column.end.back();
      column.begin.push_back(start);
      column.end.push_back(start);
      break;
    }
    case Kind::any:
      column.begin.push_back(0);
      column.end.push_back(0);
      break;
  }
}

// Make the row empty; elements of a list that was begun are dropped.
void empty_row(Column& column) {
  const bool list = column.kind == Kind::wholes || column.kind == Kind::fractions;
  const std::int64_t start = list ? column.begin.back() : 0;
  column.absent.back() = 1;
  if (list) {
    column.end.back() = start;
  } else {
    for (auto* places : {&column.begin, &column.end})
      if (!places->empty()) places->back() = 0;
    if (!column.text.empty()) column.text.back() = {};
    if (!column.whole.empty()) column.whole.back() = 0;
    if (!column.fraction.empty()) column.fraction.back() = 0;
    if (!column.boolean.empty()) column.boolean.back() = 0;
  }
  if (column.kind == Kind::wholes) column.whole.resize(static_cast<std::size_t>(start));
  if (column.kind == Kind::fractions) column.fraction.resize(static_cast<std::size_t>(start));
}

}  // namespace

std::vector<SpecialFinder> list_special_finders() {
  std::vector<SpecialFinder> finders;
#if defined(__x86_64__)
  if (processor().avx2) finders.push_back({"avx2", find_special_avx2});
  finders.push_back({"sse2", find_special_sse2});
#endif
  finders.push_back({"portable", find_special_plain});
  return finders;
}

Rows parse_lines(std::span<const char> text, std::span<const std::int64_t> bounds,
                 std::span<const Field> fields) {
  Rows found;
  found.columns.resize(fields.size());
  for (std::size_t number = 0; number < fields.size(); ++number)
    reserve_rows(found.columns[number], fields[number].kind, bounds.empty() ? 0 : bounds.size() - 1);
  LineParser parser(fields, text, found);
  for (std::size_t row = 0; row + 1 < bounds.size(); ++row) {
    const std::int64_t begin = bounds[row], end = bounds[row + 1];
    if (begin < 0 || begin > end || static_cast<std::uint64_t>(end) > text.size())
      throw std::out_of_range("a line leaves the text");
    for (Column& column : found.columns) add_row(column);
    if (parser.parse(text.data() + begin, text.data() + end)) {
      // The last value of a key may be null, and those before it not.
      for (Column& column : found.columns)
        if (column.absent.back() != 0) empty_row(column);
    } else {
      for (Column& column : found.columns) empty_row(column);
      found.left_over.push_back(static_cast<std::int64_t>(row));
    }
  }
  return found;
}

}  // namespace penstock::json
