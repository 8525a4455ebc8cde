// Pictures that the input draws, as they are, damaged, cut off, or with any bytes as their scan: every
// outcome is the pixels or a reason, the same from each kernel and by each way to them. What is not
// damaged is decoded, whole or shrunken, and its rows are found where the writer put them.
#include "images/jpeg.hpp"

#include <algorithm>
#include <cstring>

#include "fuzz/decoding.hpp"

using namespace penstock;
using jpeg::Status;

namespace {

constexpr std::uint64_t pixels_max = 1 << 15;

enum class Damage : std::uint8_t { none, scan, anywhere, end };

bool is_part(const Result& part, const jpeg::Region& region, const Result& whole, std::size_t width) {
  for (std::size_t y = 0; y < region.height; ++y)
    if (std::memcmp(part.pixels.data() + y * region.width * 3,
                    whole.pixels.data() + ((region.top + y) * width + region.left) * 3,
                    region.width * 3ul) != 0)
      return false;
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 10) return 0;
  const auto damage = static_cast<Damage>(data[4] & 3);
  InputBytes input(data + 10, size - 10);
  std::string changes, text;
  if (damage == Damage::scan || damage == Damage::anywhere)
    changes = input.take(3 * std::size_t{1 + data[9] % 4u});
  JpegWriter writer;
  text = write_picture(writer, InputBytes(data, 4), input);
  const std::size_t first = damage == Damage::anywhere ? 0 : writer.scan_offset;
  for (std::size_t at = 0; at + 3 <= changes.size(); at += 3) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(changes[at + i]); };
    text[first + (byte(0) | std::size_t{byte(1)} << 8) % (text.size() - first)] = changes[at + 2];
  }
  if (damage == Damage::end) {
    // The input itself from some byte on, or nothing.
    const std::size_t cut = first + (data[9] | std::size_t{data[4]} << 6) % (text.size() - first);
    text.resize(cut);
    if ((data[4] & 4) != 0) text += contents(data + 10, size - 10);
  }
  const ExactBytes memory(text);
  const std::span<const std::byte> file = memory.view();
  const jpeg::Stretch scan{0, file};

  jpeg::Header header;
  const jpeg::Outcome outcome = jpeg::parse_header(file, pixels_max, header);
  require(outcome.is_ok() == outcome.error.message.empty());
  if (!outcome.is_ok()) {
    require(damage == Damage::anywhere);
    return 0;
  }
  constexpr unsigned shrinks[] = {1, 1, 1, 1, 1, 2, 4, 8};
  const unsigned shrink = jpeg::can_shrink(header) ? shrinks[data[4] >> 5] : 1;
  constexpr std::uint8_t edges[] = {0, 0, 255, 255};
  const jpeg::Region all = choose_region(header, edges, shrink);
  const jpeg::Region region = choose_region(header, data + 5, shrink);

  Result first_whole, first_part;
  for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
    jpeg::Decoder& decoder = find_decoder(kernel);
    std::vector<jpeg::RowPosition> positions, found;
    Result whole = decode(decoder, header, scan, all, {}, &found);
    Result part = decode(decoder, header, scan, region);
    if (kernel == jpeg::Kernel::portable) first_whole = whole, first_part = part;
    else require(whole == first_whole && part == first_part);
    const jpeg::Outcome indexed = decoder.find_positions(header, scan, positions);
    require(indexed.status == whole.outcome.status && indexed.block_row == whole.outcome.block_row);
    require(indexed.error.offset == whole.outcome.error.offset);
    require(positions == found);
    if (damage == Damage::none) require(whole.outcome.is_ok() && positions == writer.positions);
    if (!whole.outcome.is_ok()) continue;
    require(part.outcome.is_ok() && is_part(part, region, whole, all.width));
    // From the bytes of the rows alone.
    const RowBytes rows = find_row_bytes(header, region, positions, file);
    require(decode(decoder, header, {rows.offset, rows.bytes.view()}, region, positions) == part);
  }
  return 0;
}
