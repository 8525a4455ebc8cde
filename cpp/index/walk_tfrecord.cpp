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

// The part of protobuf's wire format that tf.Example is written in, read through the window so that
// the values of no interest are skipped and not read.
//
//   Example { 1: Features { 1: entry { 1: key, 2: Feature }, ... } }
//   Feature { 1: list { 1: bytes, ... } | 2: list { 1: floats } | 3: list { 1: varints } }
class Example {
 public:
  Example(Window& window, const std::vector<std::string>& names, Features& out)
      : window_(window), names_(names), out_(out) {}

  // Adds one row for each name. False: see flaw(), or the window's error.
  bool parse(std::uint64_t begin, std::uint64_t end) {
    base_ = out_.kind.size();
    const std::size_t rows = base_ + names_.size();
    out_.kind.resize(rows, 0);
    out_.values.resize(rows, 0);
    out_.offset.resize(rows, -1);
    out_.length.resize(rows, 0);
    out_.value.resize(rows, 0);
    return fields(begin, end, [this](Tag features) {
      return fields(features.begin, features.end, [this](Tag e) { return entry(e); }, 1);
    }, 1);
  }

  std::optional<Flaw>& flaw() { return flaw_; }

 private:
  // One field of a message: its value lies in [begin, end); of a varint, `varint` is the value.
  struct Tag {
    std::uint64_t number, wire, begin, end, varint;
  };

  bool damaged(std::uint64_t at, const char* what) {
    if (window_.error() == 0)
      flaw_ = Flaw{at, std::string("no tf.Example: ") + what +
                           ": leave example= and label= out, or repair the file"};
    return false;
  }

  bool varint(std::uint64_t& at, std::uint64_t end, std::uint64_t& value) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(10, end - at));
    const std::byte* p = window_.at(at, n);
    if (p == nullptr) return damaged(at, "the file was cut while it was read");
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
    return damaged(at, "a number runs over the end of its message");
  }

  bool next(std::uint64_t& at, std::uint64_t end, Tag& tag) {
    const std::uint64_t start = at;
    std::uint64_t key = 0;
    if (!varint(at, end, key)) return false;
    tag = {key >> 3, key & 7u, at, at, 0};
    if (tag.number == 0) return damaged(start, "a field has the number 0");
    std::uint64_t length = 0;
    switch (tag.wire) {
      case 0:
        if (!varint(at, end, tag.varint)) return false;
        tag.end = at;
        return true;
      case 1: length = 8; break;
      case 5: length = 4; break;
      case 2:
        if (!varint(at, end, length)) return false;
        break;
      default: return damaged(start, "a field is of no type that tf.Example has");
    }
    if (length > end - at) return damaged(start, "a value runs over the end of its message");
    tag.begin = at;
    tag.end = at += length;
    return true;
  }

  // Calls `each` for the fields of a number that are messages; skips others.
  template <typename Each>
  bool fields(std::uint64_t at, std::uint64_t end, Each each, std::uint64_t number) {
    Tag tag;
    while (at < end) {
      if (!next(at, end, tag)) return false;
      if (tag.number == number && tag.wire == 2 && !each(tag)) return false;
    }
    return true;
  }

  bool entry(Tag whole) {
    Tag tag, key{}, feature{};
    bool has_key = false, has_feature = false;
    for (std::uint64_t at = whole.begin; at < whole.end;) {
      if (!next(at, whole.end, tag)) return false;
      if (tag.wire != 2) continue;
      if (tag.number == 1) key = tag, has_key = true;
      if (tag.number == 2) feature = tag, has_feature = true;
    }
    if (!has_key || !has_feature) return true;
    const std::uint64_t length = key.end - key.begin;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i].size() != length || length > limits::header_bytes_max) continue;
      const std::byte* p = window_.at(key.begin, static_cast<std::size_t>(length));
      if (p == nullptr) return damaged(key.begin, "the file was cut while it was read");
      if (std::string_view(reinterpret_cast<const char*>(p), names_[i].size()) == names_[i])
        return values(feature, base_ + i);
    }
    return true;
  }

  bool values(Tag feature, std::size_t row) {
    out_.kind[row] = 0;  // the last entry of a name counts
    Tag list;
    for (std::uint64_t at = feature.begin; at < feature.end;) {
      if (!next(at, feature.end, list)) return false;
      if (list.wire != 2 || list.number > 3) continue;
      out_.kind[row] = static_cast<std::uint8_t>(list.number);
      out_.values[row] = out_.length[row] = out_.value[row] = 0;
      out_.offset[row] = -1;
      if (!listed(list, row)) return false;
    }
    return true;
  }

  bool listed(Tag list, std::size_t row) {
    const auto kind = static_cast<Kind>(list.number);
    std::int64_t& count = out_.values[row];
    Tag tag;
    for (std::uint64_t at = list.begin; at < list.end;) {
      if (!next(at, list.end, tag)) return false;
      if (tag.number != 1) continue;
      const std::uint64_t length = tag.end - tag.begin;
      if (kind == Kind::bytes && tag.wire == 2) {
        extent(row, tag, count++ == 0);
      } else if (kind == Kind::floats && tag.wire == 2) {
        if (length % 4 != 0) return damaged(tag.begin, "packed floats are cut");
        extent(row, tag, count == 0);
        count += static_cast<std::int64_t>(length / 4);
      } else if (kind == Kind::floats && tag.wire == 5) {
        extent(row, tag, count++ == 0);
      } else if (kind == Kind::integers && tag.wire == 0) {
        if (count++ == 0) out_.value[row] = static_cast<std::int64_t>(tag.varint);
      } else if (kind == Kind::integers && tag.wire == 2) {
        for (std::uint64_t inner = tag.begin; inner < tag.end;) {
          std::uint64_t v = 0;
          if (!varint(inner, tag.end, v)) return false;
          if (count++ == 0) out_.value[row] = static_cast<std::int64_t>(v);
        }
      } else {
        return damaged(tag.begin, "a list holds values of another type");
      }
    }
    return true;
  }

  // Values that do not lie in one extent have none.
  void extent(std::size_t row, const Tag& tag, bool only) {
    out_.offset[row] = only ? static_cast<std::int64_t>(tag.begin) : -1;
    out_.length[row] = only ? static_cast<std::int64_t>(tag.end - tag.begin) : 0;
  }

  Window& window_;
  const std::vector<std::string>& names_;
  Features& out_;
  std::size_t base_ = 0;
  std::optional<Flaw> flaw_;
};

// The checksum of a record's data, or nothing where reading failed.
std::optional<std::uint32_t> checksum(Window& window, std::uint64_t at, std::uint64_t length) {
  std::uint32_t crc = 0;
  while (length > 0) {
    const auto part = window.some(at, length);
    if (part.empty()) return std::nullopt;
    crc = crc32c(part, crc);
    at += part.size();
    length -= part.size();
  }
  return crc;
}

// The flaw of the record at `at`, if it has one; else the length of its data.
std::optional<Flaw> record(Window& window, std::uint64_t at, Check check, std::uint64_t& length) {
  const std::uint64_t left = window.size() - at;
  if (left < head_bytes + tail_bytes)
    return Flaw{at, "the file ends inside a record (" + std::to_string(left) +
                        " bytes are left, a record takes 16 at least): it is truncated"};
  const std::byte* head = window.at(at, head_bytes);
  if (head == nullptr) return window.vanished(at);
  length = u64_at(head);
  if (check != Check::none) {
    const std::uint32_t stored = u32_at(head + 8), found = masked(crc32c({head, 8}));
    if (stored != found)
      return Flaw{at + 8, "the checksum of a record's length is " + hex(stored) + " and should be " +
                              hex(found) + (at == 0 ? ": this is no TFRecord file, or damaged"
                                                    : ": the file is damaged")};
  }
  if (length > left - head_bytes - tail_bytes)
    return Flaw{at, "a record of " + std::to_string(length) + " bytes, and the file ends " +
                        std::to_string(left) + " bytes on: it is truncated or damaged"};
  if (check == Check::all) {
    const auto crc = checksum(window, at + head_bytes, length);
    const std::byte* tail = crc ? window.at(at + head_bytes + length, tail_bytes) : nullptr;
    if (tail == nullptr) return window.vanished(at + head_bytes);
    const std::uint32_t stored = u32_at(tail), found = masked(*crc);
    if (stored != found)
      return Flaw{at + head_bytes, "the checksum of a record's " + std::to_string(length) +
                                       " bytes is " + hex(stored) + " and should be " + hex(found) +
                                       ": the data is damaged"};
  }
  return std::nullopt;
}

}  // namespace

Walk walk(Source& source, const Reach& reach, const Options& options) {
  Walk found;
  Window window(source, reach);
  Features& features = found.features;
  Example example(window, options.features, features);
  Room room(source.size);
  for (std::uint64_t at = 0; at < source.size;) {
    std::uint64_t length = 0;
    found.flaw = record(window, at, options.check, length);
    if (found.flaw) break;
    const std::uint64_t data = at + head_bytes;
    room.make(at, found.offset.size(), found.offset, found.length, features.kind, features.values,
              features.offset, features.length, features.value);
    found.offset.push_back(static_cast<std::int64_t>(data));
    found.length.push_back(static_cast<std::int64_t>(length));
    if (!options.features.empty() && !example.parse(data, data + length)) {
      found.flaw = std::move(example.flaw());
      break;
    }
    at = data + length + tail_bytes;
  }
  found.error = window.error();
  return found;
}

}  // namespace penstock::tfrecord
