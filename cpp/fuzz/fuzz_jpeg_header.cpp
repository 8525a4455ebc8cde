// Any bytes, and segments of any content, as the header of a JPEG: it is parsed, or refused at a byte of
// the file for a reason; a file that ends before its scan begins never passes.
#include "images/jpeg.hpp"

#include "fuzz/written_picture.hpp"

using namespace penstock;
using jpeg::Status;

namespace {

constexpr std::uint64_t pixels_max = 1 << 20;

// Segments whose lengths fit, of the markers that a parser knows, and tables that are whole.
std::string write_segments(InputBytes input) {
  static constexpr std::uint8_t markers[] = {0xDB, 0xC4, 0xC0, 0xDD, 0xDA, 0xE0, 0xEE, 0xFE,
                                             0xC1, 0xC2, 0xC9, 0xDC, 0xD0, 0x01, 0xDB, 0xC4};
  std::string file = "\xff\xd8";
  while (input.left() > 1) {
    const std::uint8_t what = input.take();
    const std::uint8_t marker = markers[what & 15];
    std::string content;
    if (what >= 128 && marker == 0xDB) {
      content = static_cast<char>(input.take() & 3);
      for (unsigned i = 0, first = input.take(); i < 64; ++i) content += static_cast<char>(first + i);
    } else if (what >= 128 && marker == 0xC4) {
      content = static_cast<char>(input.take() & 0x13);
      std::string counts(16, '\0');
      const unsigned length = input.take() & 15, count = 1 + input.take_below(64);
      counts[length] = static_cast<char>(count);
      content += counts;
      for (unsigned i = 0; i < count; ++i) content += static_cast<char>(i);
    } else {
      content = input.take(input.take_below(40));
    }
    const std::size_t size = content.size() + 2;
    file += {'\xff', static_cast<char>(marker), static_cast<char>(size >> 8),
             static_cast<char>(size & 0xFF)};
    file += content;
  }
  return file;
}

bool is_same(const jpeg::Header& a, const jpeg::Header& b) {
  return a.width == b.width && a.height == b.height && a.sampling == b.sampling &&
         a.restart_interval == b.restart_interval && a.scan_offset == b.scan_offset &&
         a.stray_bytes == b.stray_bytes && a.quantisers == b.quantisers && a.dc == b.dc && a.ac == b.ac;
}

jpeg::Outcome parse(std::string_view text, jpeg::Header& header) {
  const ExactBytes file(text);
  return jpeg::parse_header(file.view(), pixels_max, header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const InputBytes rest(data + 2, size - 2);
  std::string text;
  if (data[0] % 4 == 0) {
    text = contents(data + 2, size - 2);
  } else if (data[0] % 4 == 1) {
    text = write_segments(rest);
  } else {
    // A header with some bytes changed, and some left out or put in.
    static const std::array<std::string, 8> headers = [] {
      std::array<std::string, 8> made;
      for (unsigned i = 0; i < 8; ++i) {
        JpegWriter writer;
        std::mt19937_64 random(i);
        writer.sampling = static_cast<jpeg::Sampling>(i & 3);
        writer.has_long_codes = i >= 4;
        writer.restart_interval = i % 3;
        made[i] = writer.write(random).substr(0, writer.scan_offset);
      }
      return made;
    }();
    text = headers[data[1] % 8];
    InputBytes input = rest;
    while (input.left() >= 3 && !text.empty()) {
      const std::uint8_t low = input.take(), high = input.take(), value = input.take();
      const std::size_t at = (low | (high & 3u) << 8) % text.size();
      if (high < 192) text[at] = static_cast<char>(value);
      else if (high < 224) text.erase(at, value % 32);
      else text.insert(at, value % 32, static_cast<char>(low));
    }
  }

  jpeg::Header header, again;
  const jpeg::Outcome outcome = parse(text, header);
  require(outcome.is_ok() == outcome.error.message.empty());
  require(outcome.error.offset <= text.size() && outcome.block_row == jpeg::no_row);
  require(outcome.status != Status::index_misfit);
  if (outcome.status == Status::too_large)
    require(std::uint64_t{header.width} * header.height > pixels_max);
  if (!outcome.is_ok()) return 0;
  require(header.width != 0 && header.height != 0);
  require(std::uint64_t{header.width} * header.height <= pixels_max);
  require(header.scan_offset <= text.size() && header.stray_bytes <= header.scan_offset);
  // Its own bytes are enough, and each of them is needed.
  const auto end = static_cast<std::size_t>(header.scan_offset);
  require(parse(std::string_view(text).substr(0, end), again).is_ok() && is_same(header, again));
  const std::size_t cut = end - 1 - data[1] % std::min<std::size_t>(end, 32);
  require(!parse(std::string_view(text).substr(0, cut), again).is_ok());
  return 0;
}
