// One JPEG at a time: its header, the positions of its rows of blocks, and the pixels of a region.
#include "images/jpeg.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <string>
#include <tuple>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Bytes = Column<std::uint8_t>;
using Rgb = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
// Status, byte in the file, row of blocks or -1, message, stray bytes.
using Problem = std::tuple<int, std::uint64_t, std::int64_t, std::string, std::uint64_t>;

Problem describe(const jpeg::Outcome& outcome, std::uint64_t stray_bytes) {
  const std::int64_t row =
      outcome.block_row == jpeg::no_row ? -1 : std::int64_t{outcome.block_row};
  return {static_cast<int>(outcome.status), outcome.error.offset, row, outcome.error.message,
          stray_bytes};
}

std::vector<jpeg::RowPosition> list_positions(const Bytes& entries) {
  if (entries.size() % sizeof(jpeg::RowPosition) != 0)
    throw nb::value_error("a position takes 12 bytes");
  std::vector<jpeg::RowPosition> positions(entries.size() / sizeof(jpeg::RowPosition));
  if (!positions.empty()) std::memcpy(positions.data(), entries.data(), entries.size());
  return positions;
}

OwnedArray<std::uint8_t> make_entries(const std::vector<jpeg::RowPosition>& positions) {
  std::vector<std::uint8_t> entries(positions.size() * sizeof(jpeg::RowPosition));
  if (!positions.empty()) std::memcpy(entries.data(), positions.data(), entries.size());
  return make_array<std::uint8_t>(std::move(entries));
}

jpeg::Kernel find_kernel(std::size_t number) {
  const auto kernels = jpeg::list_kernels();
  if (number >= kernels.size()) throw nb::index_error("there is no such kernel");
  return kernels[number];
}

// Width, height, components' sampling, restart interval and bytes of the header.
using HeaderFields = std::tuple<std::uint32_t, std::uint32_t, int, std::uint32_t, std::uint64_t>;

std::tuple<HeaderFields, Problem> parse_header(const Bytes& file, std::uint64_t pixels_max) {
  jpeg::Header header;
  const jpeg::Outcome outcome = jpeg::parse_header(view_bytes(file), pixels_max, header);
  const HeaderFields fields{header.width, header.height, static_cast<int>(header.sampling),
                            header.restart_interval, header.scan_offset};
  return {fields, describe(outcome, header.stray_bytes)};
}

// A whole file, of which the decoder may be shown a stretch of the scan alone.
std::tuple<OwnedArray<std::uint8_t>, Problem> decode_region(
    const Bytes& file, std::uint32_t left, std::uint32_t top, const Rgb& out, std::size_t kernel,
    const Bytes& positions, bool stretch_only, unsigned shrink) {
  jpeg::Decoder decoder(find_kernel(kernel));
  const auto known = list_positions(positions);
  std::vector<jpeg::RowPosition> found;
  jpeg::Outcome outcome;
  std::uint64_t stray_bytes = 0;
  {
    const WithoutGil released;
    const auto bytes = view_bytes(file);
    jpeg::Header header;
    outcome = jpeg::parse_header(bytes, ~std::uint64_t{0}, header);
    const jpeg::Region region{left, top, static_cast<std::uint32_t>(out.shape(1)),
                              static_cast<std::uint32_t>(out.shape(0)), shrink};
    if (outcome.is_ok()) {
      jpeg::Stretch scan{0, bytes};
      std::vector<std::byte> copy;
      if (stretch_only && known.size() == header.mcu_rows()) {
        const jpeg::RowRange rows = jpeg::find_rows(header, region);
        if (rows.end > header.mcu_rows()) throw nb::index_error("the region leaves the picture");
        const std::size_t begin = known[rows.begin].offset;
        const std::size_t end =
            rows.end < known.size() ? std::size_t{known[rows.end].offset} + 1 : bytes.size();
        if (begin > end || end > bytes.size()) throw nb::index_error("positions leave the file");
        copy.assign(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                    bytes.begin() + static_cast<std::ptrdiff_t>(end));
        scan = {begin, copy};
      }
      outcome = decoder.decode(header, scan, region, {out.data(), out.shape(1) * 3}, known,
                               known.empty() ? &found : nullptr);
      stray_bytes = header.stray_bytes + decoder.stray_bytes();
    }
  }
  return {make_entries(found), describe(outcome, stray_bytes)};
}

std::tuple<OwnedArray<std::uint8_t>, Problem> find_positions(const Bytes& file, std::size_t kernel,
                                                            const Bytes& known) {
  jpeg::Decoder decoder(find_kernel(kernel));
  auto positions = list_positions(known);
  jpeg::Outcome outcome;
  std::uint64_t stray_bytes = 0;
  {
    const WithoutGil released;
    jpeg::Header header;
    outcome = jpeg::parse_header(view_bytes(file), ~std::uint64_t{0}, header);
    if (outcome.is_ok()) {
      outcome = decoder.find_positions(header, {0, view_bytes(file)}, positions);
      stray_bytes = header.stray_bytes + decoder.stray_bytes();
    }
  }
  return {make_entries(positions), describe(outcome, stray_bytes)};
}

}  // namespace

void bind_jpeg(nb::module_& m) {
  m.def("count_jpeg_kernels", [] { return jpeg::list_kernels().size(); },
        "Return the number of kernels that this machine can run.");
  m.def("parse_jpeg_header", parse_header, "file"_a.noconvert(), "pixels_max"_a,
        "Parse the segments of a JPEG up to its scan.\n\n"
        "Returns (width, height, sampling, restart interval, bytes of the header) and a problem:\n"
        "(status, byte, row of blocks or -1, message, stray bytes). Status is 0 if all is well,\n"
        "1 for what is not baseline, 2 for damage, 3 for too many pixels, 4 for positions that do\n"
        "not fit. Sampling is 0 for grey, 1 for 4:4:4, 2 for 4:2:2, 3 for 4:2:0.");
  m.def("decode_jpeg", decode_region, "file"_a.noconvert(), "left"_a, "top"_a,
        "out"_a.noconvert(), "kernel"_a, "positions"_a.noconvert(), "stretch_only"_a = false,
        "shrink"_a = 1,
        "Decode the region of a JPEG that has the shape of `out`: (height, width, 3).\n\n"
        "`shrink` divides the sides of the picture in which it lies: 1, 2, 4 or 8.\n"
        "With positions, decoding begins at the region's first row of blocks; `stretch_only` has\n"
        "it read no byte of the scan that it does not need. Returns the positions that it found on\n"
        "the way if it had none, and a problem as `parse_jpeg_header`.");
  m.def("find_jpeg_positions", find_positions, "file"_a.noconvert(), "kernel"_a,
        "known"_a.noconvert(),
        "Find where each row of blocks of a JPEG begins: 12 bytes each.\n\n"
        "known: positions of the first rows, or none. Returns all of them, and a problem as\n"
        "`parse_jpeg_header`.");
}

}  // namespace penstock::binding
