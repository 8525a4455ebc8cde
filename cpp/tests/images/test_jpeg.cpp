// JPEGs of random coefficients: the same pixels by every way to them, positions where the writer put
// the rows, and errors where files are damaged. tests/images compares pixels with libjpeg-turbo's.
#include "images/jpeg.hpp"

#include <cstring>
#include <thread>

#include "tests/support/check.hpp"
#include "tests/support/jpeg_writer.hpp"

namespace jpeg = penstock::jpeg;
using jpeg::Status;
using penstock::JpegWriter;

namespace {

using Random = JpegWriter::Random;
using Pixels = std::vector<std::uint8_t>;
using Positions = std::vector<jpeg::RowPosition>;

std::span<const std::byte> view(const std::string& file) { return std::as_bytes(std::span(file)); }

jpeg::Header parse(const std::string& file) {
  jpeg::Header header;
  CHECK(jpeg::parse_header(view(file), ~std::uint64_t{0}, header).is_ok());
  return header;
}

// Pixels of a region, in rows with a gap, which stays as it is.
jpeg::Outcome decode(jpeg::Decoder& decoder, const jpeg::Header& header, jpeg::Stretch scan,
                     const jpeg::Region& region, Pixels& pixels, const Positions& positions = {},
                     Positions* found = nullptr) {
  constexpr std::size_t gap = 5;
  const std::size_t stride = region.width * 3ul + gap;
  Pixels rows(stride * region.height, 77);
  const auto outcome =
      decoder.decode(header, scan, region, {rows.data(), stride}, positions, found);
  pixels.clear();
  for (std::size_t y = 0; y < region.height; ++y) {
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(y * stride);
    pixels.insert(pixels.end(), row, row + static_cast<std::ptrdiff_t>(stride - gap));
    for (std::size_t i = stride - gap; i < stride; ++i) CHECK(rows[y * stride + i] == 77);
  }
  return outcome;
}

Pixels cut(const Pixels& whole, std::size_t width, const jpeg::Region& region) {
  Pixels part;
  for (std::size_t y = region.top; y < region.top + region.height; ++y) {
    const auto row = whole.begin() + static_cast<std::ptrdiff_t>((y * width + region.left) * 3);
    part.insert(part.end(), row, row + static_cast<std::ptrdiff_t>(region.width * 3ul));
  }
  return part;
}

JpegWriter make_writer(Random& random) {
  JpegWriter writer;
  writer.width = 1 + static_cast<std::uint32_t>(random() % (random() % 4 == 0 ? 400 : 70));
  writer.height = 1 + static_cast<std::uint32_t>(random() % 70);
  writer.sampling = static_cast<jpeg::Sampling>(random() % 4);
  writer.restart_interval = random() % 2 == 0 ? 0 : 1 + static_cast<std::uint32_t>(random() % 9);
  writer.coefficients = random() % 3 == 0 ? 63 : static_cast<unsigned>(random() % 8);
  writer.size_max = 1 + static_cast<unsigned>(random() % 10);
  writer.has_long_codes = random() % 2 == 0;
  return writer;
}

void test_every_way_gives_the_same() {
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    JpegWriter writer = make_writer(random);
    const std::string file = writer.write(random);
    const jpeg::Header header = parse(file);
    CHECK(header.width == writer.width && header.height == writer.height);
    CHECK(header.sampling == writer.sampling && header.scan_offset == writer.scan_offset);
    const jpeg::Region all{0, 0, header.width, header.height};
    Pixels first;
    for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
      jpeg::Decoder decoder(kernel);
      Pixels whole, part;
      Positions found, positions;
      CHECK(decode(decoder, header, {0, view(file)}, all, whole, {}, &found).is_ok());
      CHECK(decoder.find_positions(header, {0, view(file)}, positions).is_ok());
      CHECK(found == writer.positions && positions == writer.positions);
      if (first.empty()) first = whole;
      CHECK(whole == first);
      for (int crop = 0; crop < 8; ++crop) {
        jpeg::Region region;
        region.left = static_cast<std::uint32_t>(random() % header.width);
        region.top = static_cast<std::uint32_t>(random() % header.height);
        region.width = 1 + static_cast<std::uint32_t>(random() % (header.width - region.left));
        region.height = 1 + static_cast<std::uint32_t>(random() % (header.height - region.top));
        const Pixels expected = cut(whole, header.width, region);
        found.clear();
        CHECK(decode(decoder, header, {0, view(file)}, region, part, {}, &found).is_ok());
        CHECK(part == expected);
        // The rest of the positions, from those that decoding has found.
        CHECK(decoder.find_positions(header, {0, view(file)}, found).is_ok());
        CHECK(found == positions);
        // The bytes that find_rows says, and no others.
        const jpeg::RowRange rows = jpeg::find_rows(header, region);
        const std::size_t begin = positions[rows.begin].offset;
        const std::size_t end =
            rows.end < header.mcu_rows() ? positions[rows.end].offset + 1ul : file.size();
        const std::vector<std::byte> bytes(view(file).begin() + static_cast<std::ptrdiff_t>(begin),
                                           view(file).begin() + static_cast<std::ptrdiff_t>(end));
        CHECK(decode(decoder, header, {begin, bytes}, region, part, positions).is_ok());
        CHECK(part == expected);
      }
    }
  }
}

// Shrunken pictures: regions are parts of the whole, with positions and without, by all kernels alike.
void test_shrunken() {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    JpegWriter writer = make_writer(random);
    const std::string file = writer.write(random);
    const jpeg::Header header = parse(file);
    for (const unsigned shrink : {2u, 4u, 8u}) {
      const std::uint32_t width = (header.width + shrink - 1) / shrink;
      const std::uint32_t height = (header.height + shrink - 1) / shrink;
      const jpeg::Region all{0, 0, width, height, shrink};
      jpeg::Region region{static_cast<std::uint32_t>(random() % width),
                          static_cast<std::uint32_t>(random() % height), 0, 0, shrink};
      region.width = 1 + static_cast<std::uint32_t>(random() % (width - region.left));
      region.height = 1 + static_cast<std::uint32_t>(random() % (height - region.top));
      Pixels first;
      for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
        jpeg::Decoder decoder(kernel);
        Pixels whole, part;
        const auto outcome = decode(decoder, header, {0, view(file)}, all, whole);
        CHECK(outcome.is_ok() == jpeg::can_shrink(header));
        if (!outcome.is_ok()) continue;
        if (first.empty()) first = whole;
        CHECK(whole == first);
        for (const Positions& positions : {Positions{}, writer.positions}) {
          CHECK(decode(decoder, header, {0, view(file)}, region, part, positions).is_ok());
          CHECK(part == cut(whole, width, region));
        }
      }
    }
  }
}

// A region of the lowest row of blocks alone: the end of the row above says whether its position fits.
void test_lowest_row() {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    JpegWriter writer = make_writer(random);
    const std::string file = writer.write(random);
    const jpeg::Header header = parse(file);
    Positions positions = writer.positions;
    if (positions.size() < 2) continue;
    jpeg::Decoder decoder;
    Pixels pixels;
    const jpeg::Region corner{0, header.height - 1, 1, 1};
    CHECK(decode(decoder, header, {0, view(file)}, corner, pixels, positions).is_ok());
    positions.back().dc[0] ^= 1;
    CHECK(decode(decoder, header, {0, view(file)}, corner, pixels, positions).status ==
          jpeg::Status::index_misfit);
  }
}

void test_damage() {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    JpegWriter writer = make_writer(random);
    writer.width = 1 + writer.width % 70;
    std::string file = writer.write(random);
    const std::string intact = file;
    const std::size_t changed = writer.scan_offset + random() % (file.size() - writer.scan_offset);
    if (round % 2 == 0) file[changed] = static_cast<char>(random());
    else file.resize(changed);
    const jpeg::Header header = parse(file);
    const jpeg::Region all{0, 0, header.width, header.height};
    std::vector<jpeg::Outcome> outcomes;
    std::vector<Pixels> pixels(jpeg::list_kernels().size());
    for (const jpeg::Kernel kernel : jpeg::list_kernels()) {
      jpeg::Decoder decoder(kernel);
      Positions positions;
      auto& made = pixels[outcomes.size()];
      outcomes.push_back(decode(decoder, header, {0, view(file)}, all, made));
      const jpeg::Outcome& outcome = outcomes.back();
      const jpeg::Outcome searched = decoder.find_positions(header, {0, view(file)}, positions);
      CHECK(searched.status == outcome.status && searched.error.offset == outcome.error.offset);
      CHECK(outcome.is_ok() || outcome.status == Status::broken);
      if (!outcome.is_ok())
        CHECK(outcome.block_row < header.mcu_rows() && outcome.error.offset <= file.size());
      // The decoder is as before after an error: what it keeps is clean.
      Pixels again;
      const std::string whole = JpegWriter(writer).write(random);
      CHECK(decode(decoder, parse(whole), {0, view(whole)}, all, again).is_ok());
      jpeg::Decoder fresh(kernel);
      Pixels clean;
      CHECK(decode(fresh, parse(whole), {0, view(whole)}, all, clean).is_ok() && clean == again);
    }
    for (const jpeg::Outcome& outcome : outcomes)
      CHECK(outcome.status == outcomes[0].status && outcome.error.offset == outcomes[0].error.offset);
    if (outcomes[0].is_ok())
      for (const Pixels& other : pixels) CHECK(other == pixels[0]);
    if (!outcomes[0].is_ok() || round % 2 == 0) continue;
    // Cut behind all that pixels depend on.
    jpeg::Decoder decoder;
    Pixels whole;
    CHECK(decode(decoder, header, {0, view(intact)}, all, whole).is_ok() && whole == pixels[0]);
  }
}

void test_positions_of_another_file() {
  Random random(3);
  JpegWriter writer;
  writer.width = 70;
  writer.height = 64;
  const std::string file = writer.write(random);
  const Positions positions = writer.positions;
  writer.write(random);
  const jpeg::Header header = parse(file);
  jpeg::Decoder decoder;
  Pixels pixels;
  const jpeg::Region all{0, 0, 70, 64};
  CHECK(decode(decoder, header, {0, view(file)}, all, pixels, positions).is_ok());
  CHECK(decode(decoder, header, {0, view(file)}, all, pixels, writer.positions).status ==
        Status::index_misfit);
  const Positions fewer(positions.begin(), positions.end() - 1);
  CHECK(decode(decoder, header, {0, view(file)}, all, pixels, fewer).status == Status::index_misfit);
  CHECK(decode(decoder, header, {0, view(file)}, {60, 0, 11, 1}, pixels).status == Status::broken);
}

void test_threads() {
  Random random(4);
  JpegWriter writer;
  writer.width = 200;
  writer.height = 100;
  const std::string file = writer.write(random);
  const jpeg::Header header = parse(file);
  std::vector<Pixels> pixels(4);
  std::vector<std::thread> threads;
  for (Pixels& mine : pixels)
    threads.emplace_back([&] {
      jpeg::Decoder decoder;
      CHECK(decode(decoder, header, {0, view(file)}, {0, 0, 200, 100}, mine).is_ok());
    });
  for (std::thread& thread : threads) thread.join();
  for (const Pixels& other : pixels) CHECK(other == pixels[0]);
}

}  // namespace

int main() {
  test_every_way_gives_the_same();
  test_shrunken();
  test_lowest_row();
  test_damage();
  test_positions_of_another_file();
  test_threads();
}
