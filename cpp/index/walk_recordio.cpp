#include "index/walk_recordio.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>

#include "ground/little_endian.hpp"

namespace penstock::recordio {
namespace {

enum Part : std::uint32_t { whole = 0, first = 1, middle = 2, last = 3 };

std::string hex(std::uint32_t v) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", v);
  return text;
}

class Walker {
 public:
  Walker(Source& source, const ReadPolicy& policy, const Options& options)
      : reader_(source, policy), options_(options) {}

  Walk run() {
    found_.first.push_back(0);
    std::uint64_t at = 0;
    while (at < reader_.size() && walk_part(at)) {
    }
    if (open_ && !found_.parse_error)
      refuse(record_, "a record has no last part: the file is truncated");
    if (found_.parse_error) found_.length.resize(static_cast<std::size_t>(found_.first.back())),
                     found_.offset.resize(found_.length.size()), found_.at.resize(found_.first.size() - 1);
    found_.read_error = reader_.error();
    return std::move(found_);
  }

 private:
  bool refuse(std::uint64_t at, std::string message) {
    found_.parse_error = ParseError{at, std::move(message)};
    return false;
  }

  bool walk_part(std::uint64_t& at) {
    const std::uint64_t left = reader_.size() - at;
    if (left < 8)
      return refuse(at, "the file ends inside a record's head (" + std::to_string(left) +
                            " of 8 bytes are there): it is truncated");
    const std::byte* head = reader_.view(at, 8);
    if (head == nullptr) return refuse_truncated(at);
    if (u32_at(head) != magic)
      return refuse(at, "a record should begin here, with the magic " + hex(magic) +
                            ", and there is " + hex(u32_at(head)) +
                            (at == 0 ? ": this is no RecordIO file" : ": the file is damaged"));
    const std::uint32_t word = u32_at(head + 4), kind = word >> 29;
    const std::uint64_t length = word & 0x1fffffffu, padded = (length + 3) & ~std::uint64_t{3};
    if (kind > last)
      return refuse(at + 4, "a part is of kind " + std::to_string(kind) +
                                ", and there are 0 to 3: the file is damaged, or the record is "
                                "longer than the 512 MiB that RecordIO can hold");
    if (padded > left - 8)
      return refuse(at, "a part of " + std::to_string(length) + " bytes, and the file ends " +
                            std::to_string(left) + " bytes on: it is truncated or damaged");
    if ((kind == middle || kind == last) && !open_)
      return refuse(at + 4, "a part continues a record that did not begin: the file is damaged");
    if ((kind == whole || kind == first) && open_)
      return refuse(at + 4, "a record begins before the last one ended: the file is damaged");
    const bool more = kind == first || kind == middle;
    if (more && padded != length)
      return refuse(at + 4, "a part of " + std::to_string(length) +
                                " bytes is not the last of its record, and is no multiple of 4");
    if (more && left - 8 - padded < 8)
      return refuse(at, "a record has no last part: the file is truncated");
    if (!open_) {
      record_ = at;
      found_.at.push_back(static_cast<std::int64_t>(at));
    }
    open_ = more;
    found_.offset.push_back(static_cast<std::int64_t>(at + 8));
    found_.length.push_back(static_cast<std::int64_t>(more ? length + 4 : length));
    at += 8 + padded;
    return more || end_record();
  }

  bool refuse_truncated(std::uint64_t at) {
    found_.parse_error = reader_.describe_truncation(at);
    return false;
  }

  bool end_record() {
    if (options_.header && !read_header()) return false;
    found_.first.push_back(static_cast<std::int64_t>(found_.length.size()));
    return true;
  }

  // Read the image header, which lies in several pieces if it holds the magic.
  bool read_header() {
    std::array<std::byte, image_header_bytes> bytes{};
    const auto begin = static_cast<std::size_t>(found_.first.back());
    std::size_t have = 0, piece = begin;
    std::uint64_t used = 0;  // of the last piece
    for (; piece < found_.length.size() && have < bytes.size(); ++piece) {
      const auto offset = static_cast<std::uint64_t>(found_.offset[piece]);
      const auto length = static_cast<std::uint64_t>(found_.length[piece]);
      used = std::min<std::uint64_t>(length, bytes.size() - have);
      if (used == 0) continue;
      const std::byte* p = reader_.view(offset, static_cast<std::size_t>(used));
      if (p == nullptr) return refuse_truncated(offset);
      std::memcpy(bytes.data() + have, p, static_cast<std::size_t>(used));
      have += static_cast<std::size_t>(used);
    }
    if (have < bytes.size())
      return refuse(record_, "a record of " + std::to_string(have) +
                                 " bytes cannot hold an image header, which takes 24: leave label= "
                                 "and header= out");
    found_.flag.push_back(u32_at(bytes.data()));
    found_.label.push_back(std::bit_cast<float>(u32_at(bytes.data() + 4)));
    found_.id.push_back(u64_at(bytes.data() + 8));
    if (options_.strip) strip_header(begin, piece - 1, used);
    return true;
  }

  // Remove the pieces before `piece`, and the first `used` bytes of that one.
  void strip_header(std::size_t begin, std::size_t piece, std::uint64_t used) {
    found_.offset[piece] += static_cast<std::int64_t>(used);
    found_.length[piece] -= static_cast<std::int64_t>(used);
    const auto drop = [&](std::vector<std::int64_t>& column) {
      column.erase(column.begin() + static_cast<std::ptrdiff_t>(begin),
                   column.begin() + static_cast<std::ptrdiff_t>(piece));
    };
    drop(found_.offset);
    drop(found_.length);
  }

  BufferedReader reader_;
  Options options_;
  Walk found_;
  bool open_ = false;  // between a first and a last part
  std::uint64_t record_ = 0;
};

}  // namespace

Walk walk(Source& source, const ReadPolicy& policy, const Options& options) {
  return Walker(source, policy, options).run();
}

}  // namespace penstock::recordio
