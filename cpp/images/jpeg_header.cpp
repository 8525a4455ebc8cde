// Segments of a JPEG up to its scan (ITU-T T.81, annex B).
#include <algorithm>
#include <optional>
#include <string>

#include "images/jpeg.hpp"

namespace penstock::jpeg {
namespace {

constexpr unsigned side_max = 65500;  // of libjpeg

enum Marker : unsigned {
  tem = 0x01, sof0 = 0xC0, sof1 = 0xC1, dht = 0xC4, jpg = 0xC8, dac = 0xCC, sof15 = 0xCF, rst0 = 0xD0,
  rst7 = 0xD7, soi = 0xD8, eoi = 0xD9, sos = 0xDA, dqt = 0xDB, dnl = 0xDC, dri = 0xDD, app0 = 0xE0,
  app14 = 0xEE, app15 = 0xEF, com = 0xFE,
};

// Places of the coefficients, which files have in zigzag order.
constexpr std::array<std::uint8_t, 64> zigzag_places = [] {
  std::array<std::uint8_t, 64> places{};
  int row = 0, column = 0;
  for (std::uint8_t& place : places) {
    place = static_cast<std::uint8_t>(8 * row + column);
    if ((row + column) % 2 == 0) {  // up and right
      if (column == 7) ++row;
      else if (row == 0) ++column;
      else --row, ++column;
    } else {
      if (row == 7) ++column;
      else if (column == 0) ++row;
      else ++row, --column;
    }
  }
  return places;
}();

std::string name_frame(unsigned marker) {
  const bool arithmetic = marker > 0xC8;
  switch (marker & 3) {
    case 2: return arithmetic ? "progressive, with arithmetic coding" : "progressive";
    case 3: return "lossless";
    default: return arithmetic ? "coded arithmetically" : "hierarchical";
  }
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::uint64_t pixels_max, Header& header)
      : bytes_(bytes), pixels_max_(pixels_max), header_(header) {}

  Outcome parse() {
    if (bytes_.size() < 2) return break_off(bytes_.size(), "the file ends before a picture begins");
    if (at(0) != 0xFF || at(1) != soi) return leave("it does not begin like a JPEG");
    next_ = 2;
    while (!outcome_) parse_segment();
    return *outcome_;
  }

 private:
  struct Component {
    unsigned id = 0, h = 0, v = 0, quantiser = 0;
  };

  unsigned at(std::size_t offset) const { return std::to_integer<unsigned>(bytes_[offset]); }
  unsigned at16(std::size_t offset) const { return at(offset) << 8 | at(offset + 1); }

  Outcome break_off(std::size_t offset, std::string message) {
    outcome_ = {Status::broken, {offset, std::move(message)}, no_row};
    return *outcome_;
  }
  Outcome leave(std::string message) {
    outcome_ = {Status::not_ours, {next_, std::move(message)}, no_row};
    return *outcome_;
  }

  // The next marker's code; `next_` is behind it then. 0 where the bytes end.
  unsigned find_marker() {
    for (;;) {
      while (next_ < bytes_.size() && at(next_) != 0xFF) ++next_, ++header_.stray_bytes;
      while (next_ < bytes_.size() && at(next_) == 0xFF) ++next_;
      if (next_ >= bytes_.size()) return 0;
      if (at(next_) != 0) return at(next_++);
      header_.stray_bytes += 2;
      ++next_;
    }
  }

  void parse_segment() {
    const unsigned marker = find_marker();
    if (marker == 0) {
      break_off(bytes_.size(), "the file ends inside its header");
      return;
    }
    if (marker == tem || (marker >= rst0 && marker <= rst7)) {
      header_.stray_bytes += 2;
      return;
    }
    if (marker == soi) {
      break_off(next_ - 2, "a picture begins inside the header of another");
      return;
    }
    if (marker == eoi) {
      break_off(next_ - 2, "the picture ends inside its header");
      return;
    }
    const bool is_frame = marker >= sof0 && marker <= sof15 && marker != dht && marker != dac;
    const bool is_known = (is_frame && marker != jpg) || marker == dht || marker == dac ||
                          (marker >= sos && marker <= dri) || (marker >= app0 && marker <= app15) ||
                          marker == com;
    if (!is_known) {
      leave("marker " + std::to_string(marker) + " is not one of a baseline picture");
      return;
    }
    if (bytes_.size() - next_ < 2) {
      break_off(bytes_.size(), "the file ends inside its header");
      return;
    }
    const unsigned length = at16(next_);
    if (length < 2) {
      break_off(next_, "a segment has length " + std::to_string(length) + ", less than its own 2 bytes");
      return;
    }
    if (bytes_.size() - next_ < length) {
      break_off(bytes_.size(), "the file ends inside its header");
      return;
    }
    const std::size_t begin = next_ + 2, end = next_ + length;
    if (is_frame) parse_frame(marker, begin, end);
    else if (marker == dht) parse_codes(begin, end);
    else if (marker == dqt) parse_quantisers(begin, end);
    else if (marker == dri) parse_restart(begin, end);
    else if (marker == sos) parse_scan(begin, end);
    else if (marker == app0 || marker == app14) parse_application(marker, begin, end);
    if (!outcome_) next_ = end;
  }

  void parse_application(unsigned marker, std::size_t begin, std::size_t end) {
    const auto begins_with = [&](std::string_view text) {
      return std::equal(text.begin(), text.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin),
                        [](char a, std::byte b) { return static_cast<std::byte>(a) == b; });
    };
    if (marker == app0 && end - begin >= 14 && begins_with({"JFIF\0", 5})) is_jfif_ = true;
    if (marker == app14 && end - begin >= 12 && begins_with("Adobe")) transform_ = at(begin + 11);
  }

  void parse_frame(unsigned marker, std::size_t begin, std::size_t end) {
    if (end - begin < 6) {
      break_off(begin, "a frame's segment is too short");
      return;
    }
    if (has_frame_) {
      leave("it has two frames");
      return;
    }
    has_frame_ = true;
    const unsigned precision = at(begin), count = at(begin + 5);
    header_.height = at16(begin + 1);
    header_.width = at16(begin + 3);
    if (header_.width == 0 || header_.height == 0) {
      break_off(begin + 1, "the picture is " + std::to_string(header_.width) + " x " +
                               std::to_string(header_.height) + " pixels");
      return;
    }
    const std::uint64_t pixels = std::uint64_t{header_.width} * header_.height;
    if (pixels > pixels_max_) {
      outcome_ = {Status::too_large,
                  {begin + 1, "the picture has " + std::to_string(header_.width) + " x " +
                                  std::to_string(header_.height) + " = " + std::to_string(pixels) +
                                  " pixels, more than " + std::to_string(pixels_max_)},
                  no_row};
      return;
    }
    if (marker != sof0 && marker != sof1) {
      leave("it is " + name_frame(marker));
      return;
    }
    if (precision != 8) {
      leave("its samples have " + std::to_string(precision) + " bits");
      return;
    }
    if (header_.width > side_max || header_.height > side_max) {
      leave("a side is longer than " + std::to_string(side_max));
      return;
    }
    if (count != 1 && count != 3) {
      leave("it has " + std::to_string(count) + " components");
      return;
    }
    if (end - begin != 6 + 3 * count) {
      break_off(begin, "a frame's segment does not have the length of its components");
      return;
    }
    for (unsigned i = 0; i < count; ++i) {
      const std::size_t p = begin + 6 + 3 * i;
      components_[i] = {at(p), at(p + 1) >> 4, at(p + 1) & 15, at(p + 2)};
    }
    count_ = count;
    if (!choose_sampling()) leave("its components are sampled in an unusual way");
  }

  bool choose_sampling() {
    const auto& [y, cb, cr] = components_;
    if (count_ == 1) {
      header_.sampling = Sampling::grey;  // blocks of a lone component follow each other
      return y.h >= 1 && y.h <= 4 && y.v >= 1 && y.v <= 4;
    }
    if (cb.h != 1 || cb.v != 1 || cr.h != 1 || cr.v != 1) return false;
    if (y.h == 1 && y.v == 1) header_.sampling = Sampling::s444;
    else if (y.h == 2 && y.v == 1) header_.sampling = Sampling::s422;
    else if (y.h == 2 && y.v == 2) header_.sampling = Sampling::s420;
    else return false;
    return true;
  }

  void parse_codes(std::size_t begin, std::size_t end) {
    while (begin < end) {
      const unsigned which = at(begin);
      if (end - begin < 17 || (which & ~0x13U) != 0) {
        break_off(begin, "a Huffman table is damaged");
        return;
      }
      HuffmanSpec spec;
      std::size_t count = 0;
      for (unsigned i = 0; i < 16; ++i)
        count += spec.counts[i] = static_cast<std::uint8_t>(at(begin + 1 + i));
      if (count > 256 || count > end - begin - 17) {
        break_off(begin + 1, "a Huffman table has more codes than symbols");
        return;
      }
      for (std::size_t i = 0; i < count; ++i)
        spec.symbols[i] = static_cast<std::uint8_t>(at(begin + 17 + i));
      codes_[which >> 4][which & 3] = spec;
      begin += 17 + count;
    }
  }

  void parse_quantisers(std::size_t begin, std::size_t end) {
    while (begin < end) {
      const unsigned which = at(begin) & 15, width = (at(begin) >> 4) + 1;
      if (which > 3 || width > 2 || end - begin < 1 + 64 * width) {
        break_off(begin, "a table of quantisers is damaged");
        return;
      }
      std::array<std::uint16_t, 64> table{};
      for (std::size_t i = 0; i < 64; ++i) {
        const std::size_t p = begin + 1 + width * i;
        table[zigzag_places[i]] = static_cast<std::uint16_t>(width == 2 ? at16(p) : at(p));
      }
      quantisers_[which] = table;
      begin += 1 + 64 * width;
    }
  }

  void parse_restart(std::size_t begin, std::size_t end) {
    if (end - begin != 2) break_off(begin, "the segment of the restart interval does not have 4 bytes");
    else header_.restart_interval = at16(begin);
  }

  void parse_scan(std::size_t begin, std::size_t end) {
    if (!has_frame_) {
      break_off(begin, "a scan comes before the frame");
      return;
    }
    const unsigned count = begin < end ? at(begin) : 0;
    if (count == 0 || count > 4 || end - begin != 4 + 2 * count) {
      break_off(begin, "a scan's segment does not have the length of its components");
      return;
    }
    if (count != count_) {
      leave("it has several scans");
      return;
    }
    for (unsigned i = 0; i < count; ++i) {
      const unsigned id = at(begin + 1 + 2 * i), tables = at(begin + 2 + 2 * i);
      if (id != components_[i].id) {
        leave("its scan has components in another order than its frame");
        return;
      }
      const auto& dc = (tables >> 4) < 4 ? codes_[0][tables >> 4] : std::nullopt;
      const auto& ac = (tables & 15) < 4 ? codes_[1][tables & 15] : std::nullopt;
      const auto& quantisers =
          components_[i].quantiser < 4 ? quantisers_[components_[i].quantiser] : std::nullopt;
      if (!dc || !ac || !quantisers) {
        leave("a table that it uses is not defined");
        return;
      }
      if (!is_prefix_code(*dc) || !is_prefix_code(*ac) || !has_sizes(*dc)) {
        leave("a Huffman table is not a code");
        return;
      }
      if (std::ranges::count(*quantisers, 0) != 0) {
        leave("a quantiser is 0");
        return;
      }
      header_.dc[i] = *dc;
      header_.ac[i] = *ac;
      header_.quantisers[i] = *quantisers;
    }
    if (at(end - 3) != 0 || at(end - 2) != 63 || at(end - 1) != 0) {
      leave("its scan does not have all coefficients");
      return;
    }
    if (count == 3 && is_rgb()) {
      leave("its components are red, green and blue");
      return;
    }
    header_.scan_offset = end;
    outcome_ = Outcome{};
  }

  // As libjpeg guesses it: JFIF means YCbCr, then Adobe's word counts, then the names of components.
  bool is_rgb() const {
    if (is_jfif_) return false;
    if (transform_) return *transform_ == 0;
    return components_[0].id == 'R' && components_[1].id == 'G' && components_[2].id == 'B';
  }

  static bool is_prefix_code(const HuffmanSpec& spec) {
    std::uint32_t code = 0;
    for (unsigned length = 1; length <= 16; ++length) {
      code += spec.counts[length - 1];
      if (code >= (std::uint32_t{1} << length)) return false;  // no code is all ones
      code <<= 1;
    }
    return true;
  }
  static bool has_sizes(const HuffmanSpec& dc) {
    std::size_t count = 0;
    for (const unsigned codes : dc.counts) count += codes;
    return std::all_of(dc.symbols.begin(), dc.symbols.begin() + static_cast<std::ptrdiff_t>(count),
                       [](unsigned size) { return size <= 15; });
  }

  std::span<const std::byte> bytes_;
  std::uint64_t pixels_max_;
  Header& header_;
  std::optional<Outcome> outcome_;
  std::size_t next_ = 0;
  bool has_frame_ = false, is_jfif_ = false;
  std::optional<unsigned> transform_;
  unsigned count_ = 0;
  std::array<Component, 3> components_{};
  std::array<std::array<std::optional<HuffmanSpec>, 4>, 2> codes_{};
  std::array<std::optional<std::array<std::uint16_t, 64>>, 4> quantisers_{};
};

}  // namespace

Outcome parse_header(std::span<const std::byte> bytes, std::uint64_t pixels_max, Header& header) {
  header = {};
  return Parser(bytes, pixels_max, header).parse();
}

}  // namespace penstock::jpeg
