// Positions of rows that the input changes, of pictures that it draws: the file is decoded with them, or
// they are refused, by both kernels alike. Undamaged they give the pixels that there are without them.
#include "images/transform.hpp"

#include <cstring>

#include "fuzz/decoding.hpp"

using namespace penstock;
using namespace penstock::images;
using jpeg::Status;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 12) return 0;
  InputBytes input(data + 12, size - 12);
  std::string changes(input.take(4 * std::size_t{data[4] % 4u}));
  JpegWriter writer;
  const std::string text = write_picture(writer, InputBytes(data, 4), input);
  const ExactBytes memory(text);
  const std::span<const std::byte> file = memory.view();

  // Changes of a byte of an entry, entries left out, added, or in the place of others.
  auto positions = writer.positions;
  for (std::size_t at = 0; at + 4 <= changes.size() && !positions.empty(); at += 4) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(changes[at + i]); };
    auto& position = positions[byte(0) % positions.size()];
    auto* const bytes = reinterpret_cast<std::uint8_t*>(&position);
    switch (byte(1) >> 5) {
      case 0: positions.pop_back(); break;
      case 1: positions.push_back(position); break;
      case 2: position = positions[byte(2) % positions.size()]; break;
      case 3: position.offset += byte(2) - 128u; break;
      case 4: position.offset = static_cast<std::uint32_t>(byte(2)) << byte(3) % 32; break;
      case 5: position.bit = byte(2) % 8; break;
      default: bytes[byte(2) % sizeof position] = byte(3); break;
    }
  }

  jpeg::Header header;
  require(jpeg::parse_header(file, ~std::uint64_t{0}, header).is_ok());
  const jpeg::Region region = choose_region(header, data + 5);
  const bool is_same = positions == writer.positions;
  Result first, first_alone;
  for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
    jpeg::Decoder& decoder = find_decoder(kernel);
    // No positions are what a file without an index has.
    const Result result = decode(decoder, header, {0, file}, region, positions);
    const RowBytes rows = find_row_bytes(header, region, writer.positions, file);
    const jpeg::Stretch stretch{rows.offset, rows.bytes.view()};
    const Result alone = positions.empty() ? result : decode(decoder, header, stretch, region, positions);
    if (kernel == jpeg::Kernel::portable) first = result, first_alone = alone;
    else require(result == first && alone == first_alone);
    if (!is_same) continue;
    require(result.outcome.is_ok() && alone == result);
    require(decode(decoder, header, {0, file}, region) == result);
  }

  // As a loader does it: the bytes that a crop needs are asked for, and are all that there is.
  static Transformer transformer;
  Transform transform;
  transform.rule.kind = static_cast<Kind>(data[9] % 3);
  transform.rule.target = {1 + data[10] % 8u, 1 + data[10] % 5u};
  transform.rule.area_low = 0.05;
  transform.rule.ratio_low = 0.5;
  transform.rule.ratio_high = 2;
  const Words words = draw_words(data[11], data[9]);
  std::vector<std::uint8_t> out(transform.row_bytes()), other(transform.row_bytes());
  const NeededBytes needed = find_needed_bytes(transform, {header.height, header.width},
                                               header.scan_offset, file.size(), words, positions);
  require(needed.begin <= needed.end && needed.end <= file.size());
  require(needed.header_bytes <= needed.begin || needed.header_bytes == 0);
  const ExactBytes part(text.substr(0, static_cast<std::size_t>(needed.header_bytes)) +
                        text.substr(static_cast<std::size_t>(needed.begin),
                                    static_cast<std::size_t>(needed.end - needed.begin)));
  const Made made =
      transformer.transform_part(transform, part.view(), needed, words, positions, out.data());
  require(made.outcome.is_ok() || made.outcome.status == Status::index_misfit);
  const Made whole = transformer.transform_file(transform, file, words, {}, other.data());
  require(whole.outcome.is_ok() && !whole.index_dropped);
  if (is_same) require(made.outcome.is_ok() && out == other);
  // A file whose positions do not fit is decoded without them.
  require(transformer.transform_file(transform, file, words, positions, out.data()).outcome.is_ok());
  return 0;
}
