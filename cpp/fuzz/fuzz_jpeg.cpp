// Any bytes as a JPEG, as the scan of a good header, as positions of the rows of a good file, and in the
// place of some of its bytes: every outcome is the pixels or a reason, the same from each kernel, and from
// each way to them.
#include "images/jpeg.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>

#include "fuzz/require.hpp"
#include "tests/support/jpeg_writer.hpp"

using namespace penstock;
using jpeg::Status;

namespace {

constexpr std::uint64_t pixels_max = 1 << 12;

struct Picture {
  JpegWriter writer;
  std::string file;
};

// One of 256 good files.
const Picture& find_picture(std::uint8_t how) {
  static std::array<std::unique_ptr<Picture>, 256> pictures;
  auto& picture = pictures[how];
  if (picture) return *picture;
  picture = std::make_unique<Picture>();
  JpegWriter& writer = picture->writer;
  std::mt19937_64 random(how);
  writer.sampling = static_cast<jpeg::Sampling>(how & 3);
  writer.restart_interval = (how & 4) != 0 ? 3 : 0;
  writer.has_long_codes = (how & 8) != 0;
  writer.coefficients = (how & 16) != 0 ? 63 : 4;
  writer.width = 33 + (how >> 5);
  writer.height = 21 + (how >> 6);
  picture->file = writer.write(random);
  return *picture;
}

enum Mode : std::uint8_t { any, any_scan, any_positions, some_bytes };

std::string make_file(Mode mode, const Picture& picture, std::string_view rest) {
  if (mode == any) return std::string(rest);
  std::string file = picture.file;
  if (mode == any_scan) file.replace(picture.writer.scan_offset, file.size(), rest);
  if (mode == some_bytes)
    for (std::size_t at = 0; at + 3 <= rest.size(); at += 3) {
      const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(rest[at + i]); };
      file[(byte(0) | std::size_t{byte(1)} << 8) % file.size()] = rest[at + 2];
    }
  return file;
}

jpeg::Decoder& find_decoder(jpeg::Kernel kernel) {
  static jpeg::Decoder decoders[] = {jpeg::Decoder(jpeg::Kernel::portable),
                                     jpeg::Decoder(jpeg::list_kernels().back())};
  return decoders[kernel == jpeg::Kernel::portable ? 0 : 1];
}

struct Result {
  jpeg::Outcome outcome;
  std::vector<std::uint8_t> pixels;

  bool operator==(const Result& other) const {
    return outcome.status == other.outcome.status && outcome.block_row == other.outcome.block_row &&
           outcome.error.offset == other.outcome.error.offset &&
           outcome.error.message == other.outcome.error.message &&
           (!outcome.is_ok() || pixels == other.pixels);
  }
};

Result decode(jpeg::Decoder& decoder, const jpeg::Header& header, jpeg::Stretch scan,
              const jpeg::Region& region, std::span<const jpeg::RowPosition> positions = {},
              std::vector<jpeg::RowPosition>* found = nullptr) {
  Result result;
  result.pixels.resize(std::size_t{region.width} * region.height * 3);
  result.outcome = decoder.decode(header, scan, region, {result.pixels.data(), region.width * 3ul},
                                  positions, found);
  const bool is_row = result.outcome.block_row < header.mcu_rows();
  require(result.outcome.is_ok() == result.outcome.error.message.empty());
  if (result.outcome.status == Status::broken) require(is_row && positions.empty());
  else require(result.outcome.is_ok() || result.outcome.status == Status::index_misfit);
  return result;
}

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
  if (size < 8) return 0;
  const auto mode = static_cast<Mode>(data[0] % 4);
  const std::string_view rest = contents(data + 8, size - 8);
  const Picture& picture = find_picture(data[1]);
  const std::string text = make_file(mode, picture, rest);
  // Exactly as large as the file, so that a read beyond it is found.
  const auto copy = std::make_unique<std::byte[]>(text.size());
  std::memcpy(copy.get(), text.data(), text.size());
  const std::span<const std::byte> file(copy.get(), text.size());
  const jpeg::Stretch scan{0, file};

  jpeg::Header header;
  const jpeg::Outcome outcome = jpeg::parse_header(file, pixels_max, header);
  require(outcome.is_ok() == outcome.error.message.empty());
  require(outcome.error.offset <= file.size());
  if (!outcome.is_ok()) {
    require((mode == any || mode == some_bytes) && outcome.status != Status::index_misfit);
    return 0;
  }
  require(header.scan_offset <= file.size() && header.width != 0 && header.height != 0);
  require(std::uint64_t{header.width} * header.height <= pixels_max);

  jpeg::Region region;
  region.left = data[2] * header.width / 256;
  region.top = data[3] * header.height / 256;
  region.width = 1 + data[4] * (header.width - region.left - 1) / 255;
  region.height = 1 + data[5] * (header.height - region.top - 1) / 255;
  const jpeg::Region all{0, 0, header.width, header.height};

  std::vector<Result> wholes, parts;
  for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
    jpeg::Decoder& decoder = find_decoder(kernel);
    std::vector<jpeg::RowPosition> positions, found;
    wholes.push_back(decode(decoder, header, scan, all, {}, &found));
    parts.push_back(decode(decoder, header, scan, region));
    const auto& whole = wholes.back();
    require(whole == wholes.front() && parts.back() == parts.front());
    const jpeg::Outcome indexed = decoder.find_positions(header, scan, positions);
    require(indexed.status == whole.outcome.status && indexed.block_row == whole.outcome.block_row);
    require(indexed.error.offset == whole.outcome.error.offset);
    require(positions == found);
    if (mode == any_positions)
      require(whole.outcome.is_ok() && positions == picture.writer.positions);
    if (!whole.outcome.is_ok()) continue;
    require(parts.back().outcome.is_ok() && is_part(parts.back(), region, whole, header.width));

    // From the bytes of the rows alone.
    const jpeg::RowRange rows = jpeg::find_rows(header, region);
    require(rows.begin < rows.end && rows.end <= header.mcu_rows());
    const std::size_t begin = positions[rows.begin].offset;
    const std::size_t end = rows.end < header.mcu_rows() ? positions[rows.end].offset + 1 : file.size();
    const std::vector<std::byte> bytes(file.data() + begin, file.data() + end);
    const auto alone = decode(decoder, header, {begin, bytes}, region, positions);
    require(alone == parts.back());

    if (mode != any_positions) continue;
    // Positions that the input overwrites: other pixels perhaps, which their owner's checksums prevent.
    auto damaged = positions;
    const std::size_t count = std::min(rest.size(), damaged.size() * sizeof(jpeg::RowPosition));
    std::memcpy(damaged.data(), rest.data(), count);
    decode(decoder, header, scan, region, damaged);
    decode(decoder, header, {begin, bytes}, region, damaged);
  }
  return 0;
}
