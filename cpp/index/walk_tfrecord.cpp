#include "index/walk_tfrecord.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "ground/crc32c.hpp"
#include "ground/limits.hpp"
#include "ground/little_endian.hpp"
#include "index/column_growth.hpp"

namespace penstock::tfrecord {
namespace {

constexpr std::uint64_t head_bytes = 12, tail_bytes = 4;

std::string hex(std::uint32_t v) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", v);
  return text;
}

// The part of protobuf's wire format that tf.Example is written in, read through the reader so that
// values of no interest are skipped and not read.
//
//   Example { 1: Features { 1: entry { 1: key, 2: Feature }, ... } }
//   Feature { 1: list { 1: bytes, ... } | 2: list { 1: floats } | 3: list { 1: varints } }
class Example {
 public:
  Example(BufferedReader& reader, const std::vector<std::string>& names, Features& out)
      : reader_(reader), names_(names), out_(out) {}

  // Add one row for each name. If false, see parse_error(), or the reader's error.
  bool parse(std::uint64_t begin, std::uint64_t end) {
    base_ = out_.kind.size();
    const std::size_t rows = base_ + names_.size();
    out_.kind.resize(rows, 0);
    out_.values.resize(rows, 0);
    out_.offset.resize(rows, -1);
    out_.length.resize(rows, 0);
    out_.value.resize(rows, 0);
    return visit_fields(begin, end, [this](Tag features) {
      return visit_fields(features.begin, features.end, [this](Tag e) { return read_entry(e); }, 1);
    }, 1);
  }

  std::optional<ParseError>& parse_error() { return parse_error_; }

 private:
  // One field of a message: its value lies in [begin, end); of a varint, `varint` is the value.
  struct Tag {
    std::uint64_t number, wire, begin, end, varint;
  };

  bool report_damage(std::uint64_t at, const char* what) {
    if (reader_.error() == 0)
      parse_error_ = ParseError{at, std::string("no tf.Example: ") + what +
                           ": leave example= and label= out, or repair the file"};
    return false;
  }

  bool read_varint(std::uint64_t& at, std::uint64_t end, std::uint64_t& value) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(10, end - at));
    const std::byte* p = reader_.view(at, n);
    if (p == nullptr) return report_damage(at, "the file was cut while it was read");
    value = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto b = std::to_integer<std::uint64_t>(p[i]);
      if (i == 9 && b > 1) break;
      value |= (b & 0x7fu) << (7 * i);
      if ((b & 0x80u) == 0) {
        at += i + 1;
        return true;
      }
    }
    return report_damage(at, "a number runs over the end of its message");
  }

  bool read_tag(std::uint64_t& at, std::uint64_t end, Tag& tag) {
    const std::uint64_t start = at;
    std::uint64_t key = 0;
    if (!read_varint(at, end, key)) return false;
    tag = {key >> 3, key & 7u, at, at, 0};
    if (tag.number == 0) return report_damage(start, "a field has the number 0");
    std::uint64_t length = 0;
    switch (tag.wire) {
      case 0:
        if (!read_varint(at, end, tag.varint)) return false;
        tag.end = at;
        return true;
      case 1: length = 8; break;
      case 5: length = 4; break;
      case 2:
        if (!read_varint(at, end, length)) return false;
        break;
      default: return report_damage(start, "a field is of no type that tf.Example has");
    }
    if (length > end - at) return report_damage(start, "a value runs over the end of its message");
    tag.begin = at;
    tag.end = at += length;
    return true;
  }

  // Call `each` for the messages with this field number; skip other fields.
  template <typename Each>
  bool visit_fields(std::uint64_t at, std::uint64_t end, Each each, std::uint64_t number) {
    Tag tag;
    while (at < end) {
      if (!read_tag(at, end, tag)) return false;
      if (tag.number == number && tag.wire == 2 && !each(tag)) return false;
    }
    return true;
  }

  bool read_entry(Tag whole) {
    Tag tag, key{}, feature{};
    bool has_key = false, has_feature = false;
    for (std::uint64_t at = whole.begin; at < whole.end;) {
      if (!read_tag(at, whole.end, tag)) return false;
      if (tag.wire != 2) continue;
      if (tag.number == 1) key = tag, has_key = true;
      if (tag.number == 2) feature = tag, has_feature = true;
    }
    if (!has_key || !has_feature) return true;
    const std::uint64_t length = key.end - key.begin;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i].size() != length || length > limits::header_bytes_max) continue;
      const std::byte* p = reader_.view(key.begin, static_cast<std::size_t>(length));
      if (p == nullptr) return report_damage(key.begin, "the file was cut while it was read");
      if (std::string_view(reinterpret_cast<const char*>(p), names_[i].size()) == names_[i])
        return read_values(feature, base_ + i);
    }
    return true;
  }

  bool read_values(Tag feature, std::size_t row) {
    out_.kind[row] = 0;  // the last entry of a name counts
    Tag list;
    for (std::uint64_t at = feature.begin; at < feature.end;) {
      if (!read_tag(at, feature.end, list)) return false;
      if (list.wire != 2 || list.number > 3) continue;
      out_.kind[row] = static_cast<std::uint8_t>(list.number);
      out_.values[row] = out_.length[row] = out_.value[row] = 0;
      out_.offset[row] = -1;
      if (!read_list(list, row)) return false;
    }
    return true;
  }

  bool read_list(Tag list, std::size_t row) {
    const auto kind = static_cast<Kind>(list.number);
    std::int64_t& count = out_.values[row];
    Tag tag;
    for (std::uint64_t at = list.begin; at < list.end;) {
      if (!read_tag(at, list.end, tag)) return false;
      if (tag.number != 1) continue;
      const std::uint64_t length = tag.end - tag.begin;
      if (kind == Kind::bytes && tag.wire == 2) {
        set_extent(row, tag, count++ == 0);
      } else if (kind == Kind::floats && tag.wire == 2) {
        if (length % 4 != 0) return report_damage(tag.begin, "packed floats are cut");
        set_extent(row, tag, count == 0);
        count += static_cast<std::int64_t>(length / 4);
      } else if (kind == Kind::floats && tag.wire == 5) {
        set_extent(row, tag, count++ == 0);
      } else if (kind == Kind::integers && tag.wire == 0) {
        if (count++ == 0) out_.value[row] = static_cast<std::int64_t>(tag.varint);
      } else if (kind == Kind::integers && tag.wire == 2) {
        for (std::uint64_t inner = tag.begin; inner < tag.end;) {
          std::uint64_t v = 0;
          if (!read_varint(inner, tag.end, v)) return false;
          if (count++ == 0) out_.value[row] = static_cast<std::int64_t>(v);
        }
      } else {
        return report_damage(tag.begin, "a list holds values of another type");
      }
    }
    return true;
  }

  // Values that do not lie in one extent have none.
  void set_extent(std::size_t row, const Tag& tag, bool only) {
    out_.offset[row] = only ? static_cast<std::int64_t>(tag.begin) : -1;
    out_.length[row] = only ? static_cast<std::int64_t>(tag.end - tag.begin) : 0;
  }

  BufferedReader& reader_;
  const std::vector<std::string>& names_;
  Features& out_;
  std::size_t base_ = 0;
  std::optional<ParseError> parse_error_;
};

// The checksum of a record's data, or nothing if reading failed.
std::optional<std::uint32_t> sum_data(BufferedReader& reader, std::uint64_t at,
                                      std::uint64_t length) {
  std::uint32_t crc = 0;
  while (length > 0) {
    const auto part = reader.view_some(at, length);
    if (part.empty()) return std::nullopt;
    crc = crc32c(part, crc);
    at += part.size();
    length -= part.size();
  }
  return crc;
}

// Check the record at `at`: its error, if it has one; else `length` becomes that of its data.
std::optional<ParseError> check_record(BufferedReader& reader, std::uint64_t at, Check check,
                                       std::uint64_t& length) {
  const std::uint64_t left = reader.size() - at;
  if (left < head_bytes + tail_bytes)
    return ParseError{at, "the file ends inside a record (" + std::to_string(left) +
                        " bytes are left, a record takes 16 at least): it is truncated"};
  const std::byte* head = reader.view(at, head_bytes);
  if (head == nullptr) return reader.describe_truncation(at);
  length = u64_at(head);
  if (check != Check::none) {
    const std::uint32_t stored = u32_at(head + 8), found = mask_crc(crc32c({head, 8}));
    if (stored != found)
      return ParseError{at + 8, "the checksum of a record's length is " + hex(stored) +
                                    " and should be " + hex(found) +
                                    (at == 0 ? ": this is no TFRecord file, or damaged"
                                             : ": the file is damaged")};
  }
  if (length > left - head_bytes - tail_bytes)
    return ParseError{at, "a record of " + std::to_string(length) + " bytes, and the file ends " +
                        std::to_string(left) + " bytes on: it is truncated or damaged"};
  if (check == Check::all) {
    const auto crc = sum_data(reader, at + head_bytes, length);
    const std::byte* tail = crc ? reader.view(at + head_bytes + length, tail_bytes) : nullptr;
    if (tail == nullptr) return reader.describe_truncation(at + head_bytes);
    const std::uint32_t stored = u32_at(tail), found = mask_crc(*crc);
    if (stored != found)
      return ParseError{at + head_bytes, "the checksum of a record's " + std::to_string(length) +
                                       " bytes is " + hex(stored) + " and should be " + hex(found) +
                                       ": the data is damaged"};
  }
  return std::nullopt;
}

// Where the first record seems to begin in [at, stop), by the checksum of its length; else `stop`.
std::uint64_t find_record(BufferedReader& reader, std::uint64_t at, std::uint64_t stop) {
  for (; at < stop && reader.size() - at >= head_bytes + tail_bytes; ++at) {
    const std::byte* head = reader.view(at, head_bytes);
    if (head == nullptr) break;
    if (u64_at(head) <= reader.size() - at - head_bytes - tail_bytes &&
        u32_at(head + 8) == mask_crc(crc32c({head, 8})))
      return at;
  }
  return stop;
}

}  // namespace

Walk walk(Source& source, const ReadPolicy& policy, const Options& options) {
  Walk found;
  BufferedReader reader(source, policy, options.begin);
  const std::uint64_t stop = std::min(options.stop.value_or(source.size), source.size);
  Features& features = found.features;
  Example example(reader, options.features, features);
  std::uint64_t at = options.begin == 0 ? 0 : find_record(reader, options.begin, stop);
  found.begin = at;
  ColumnGrowth growth(stop - at);
  while (at < stop) {
    std::uint64_t length = 0;
    found.parse_error = check_record(reader, at, options.check, length);
    if (found.parse_error) break;
    const std::uint64_t data = at + head_bytes;
    growth.reserve(at - found.begin, found.offset.size(), found.offset, found.length, features.kind,
                   features.values, features.offset, features.length, features.value);
    found.offset.push_back(static_cast<std::int64_t>(data));
    found.length.push_back(static_cast<std::int64_t>(length));
    if (!options.features.empty() && !example.parse(data, data + length)) {
      found.parse_error = std::move(example.parse_error());
      break;
    }
    at = data + length + tail_bytes;
  }
  found.end = at;
  found.read_error = reader.error();
  return found;
}

}  // namespace penstock::tfrecord
