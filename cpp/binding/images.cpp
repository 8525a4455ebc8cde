// Images turned into rows of a batch, many at a time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "ground/crc32c.hpp"
#include "images/transform.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using images::Transform;
using images::Transformer;

using Bytes = Column<std::uint8_t>;
using Words64 = Column<std::uint64_t>;
using OutBytes = WritableColumn<std::uint8_t>;
using Pixels = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
// Row, status, byte, row of blocks, message, stray bytes, whether its positions did not fit.
using Problem = std::tuple<std::int64_t, int, std::uint64_t, std::int64_t, std::string,
                           std::uint64_t, bool>;

// Do work with the memory of this thread, which its next work uses again. Nothing is locked, so that
// a process that was forked meanwhile may go on; what an exception has left behind is dropped.
template <class Work>
void use_transformer(const Work& work) {
  thread_local std::unique_ptr<Transformer> kept;
  auto transformer = kept ? std::move(kept) : std::make_unique<Transformer>();
  work(*transformer);
  kept = std::move(transformer);
}

images::Kind parse_kind(const std::string& kind) {
  if (kind == "random") return images::Kind::random;
  if (kind == "centre") return images::Kind::centre;
  if (kind == "whole") return images::Kind::whole;
  if (kind == "window") return images::Kind::window;
  throw nb::value_error("unknown kind");
}

images::PadMode parse_mode(const std::string& mode) {
  if (mode == "constant") return images::PadMode::constant;
  if (mode == "edge") return images::PadMode::edge;
  if (mode == "reflect") return images::PadMode::reflect;
  if (mode == "symmetric") return images::PadMode::symmetric;
  throw nb::value_error("unknown mode");
}

images::Type parse_type(const std::string& type) {
  if (type == "uint8") return images::Type::uint8;
  if (type == "float16") return images::Type::float16;
  if (type == "bfloat16") return images::Type::bfloat16;
  if (type == "float32") return images::Type::float32;
  throw nb::value_error("unknown type");
}

// Offsets of consecutive rows in an array of `size`.
void check_bounds(std::span<const std::int64_t> bounds, std::size_t rows, std::size_t size) {
  if (bounds.size() != rows + 1) throw nb::value_error("bounds have another number of rows");
  std::int64_t before = 0;
  for (const std::int64_t bound : bounds) {
    if (bound < before || static_cast<std::uint64_t>(bound) > size)
      throw nb::index_error("a row leaves its array");
    before = bound;
  }
}

std::span<const std::byte> cut(std::span<const std::byte> values,
                               std::span<const std::int64_t> bounds, std::size_t row) {
  return values.subspan(static_cast<std::size_t>(bounds[row]),
                        static_cast<std::size_t>(bounds[row + 1] - bounds[row]));
}

Problem describe(std::size_t row, const jpeg::Outcome& outcome, std::uint64_t stray_bytes,
                 bool index_dropped) {
  const std::int64_t block_row =
      outcome.block_row == jpeg::no_row ? -1 : std::int64_t{outcome.block_row};
  return {static_cast<std::int64_t>(row), static_cast<int>(outcome.status), outcome.error.offset,
          block_row, outcome.error.message, stray_bytes, index_dropped};
}

constexpr std::size_t crop_columns = 7;

std::array<std::int32_t, crop_columns> list_crop(const images::Crop& crop, images::Size image) {
  const auto flips = static_cast<std::int32_t>(crop.flip_columns) |
                     static_cast<std::int32_t>(crop.flip_rows) << 1;
  const auto whole = [](std::uint32_t value) { return static_cast<std::int32_t>(value); };
  return {whole(crop.left),  whole(crop.top),    whole(crop.width), whole(crop.height),
          flips,             whole(image.width), whole(image.height)};
}

images::Words check_words(const Words64& words) {
  images::Words checked;
  if (words.size() != checked.size()) throw nb::value_error("a crop takes 44 words");
  std::copy_n(words.data(), checked.size(), checked.begin());
  return checked;
}

images::Size check_size(std::uint32_t height, std::uint32_t width) {
  if (height == 0 || width == 0) throw nb::value_error("the image is empty");
  return {height, width};
}

// Positions of the rows of blocks of all samples of a data set: 12 bytes each, those of sample i from
// row first[i] on, with a checksum of each sample's, and its width, height and bytes of the header.
struct Positions {
  Positions(Bytes entries_, Ints first_, Column<std::uint32_t> sums_, Column<std::int32_t> heads_)
      : entries(std::move(entries_)),
        first(std::move(first_)),
        sums(std::move(sums_)),
        heads(std::move(heads_)) {
    if (first.size() != (sums.size() == 0 ? 0 : sums.size() + 1) ||
        heads.size() != 3 * sums.size())
      throw nb::value_error("the columns of positions differ in size");
  }

  // The positions of a sample; none if they are damaged, or nothing is known of it.
  std::span<const jpeg::RowPosition> find(std::uint64_t sample,
                                          std::vector<jpeg::RowPosition>& copy,
                                          bool& is_damaged) const {
    is_damaged = false;
    copy.clear();
    if (sample >= sums.size()) return copy;
    constexpr auto entry_bytes = static_cast<std::int64_t>(sizeof(jpeg::RowPosition));
    const std::int64_t begin = first.data()[sample], end = first.data()[sample + 1];
    is_damaged = begin < 0 || end < begin ||
                 end > static_cast<std::int64_t>(entries.size()) / entry_bytes;
    if (is_damaged || begin == end) return copy;
    const auto bytes =
        view_bytes(entries).subspan(static_cast<std::size_t>(begin * entry_bytes),
                                    static_cast<std::size_t>((end - begin) * entry_bytes));
    is_damaged = crc32c(bytes) != sums.data()[sample];
    if (is_damaged) return copy;
    copy.resize(bytes.size() / sizeof copy[0]);
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    return copy;
  }

  Bytes entries;
  Ints first;
  Column<std::uint32_t> sums;
  Column<std::int32_t> heads;
};

// The bytes of a sample that its crop needs, of `file_bytes`.
images::NeededBytes find_needed(const Transform& transform, const Positions& positions,
                                std::uint64_t key, std::uint64_t sample, std::uint64_t file_bytes,
                                std::vector<jpeg::RowPosition>& copy) {
  bool is_damaged;
  const auto known = positions.find(sample, copy, is_damaged);
  if (known.empty()) return {0, 0, file_bytes};
  const std::int32_t* head = positions.heads.data() + 3 * sample;
  if (head[0] <= 0 || head[1] <= 0 || head[2] <= 0) return {0, 0, file_bytes};
  const images::Size image{static_cast<std::uint32_t>(head[1]),
                           static_cast<std::uint32_t>(head[0])};
  return images::find_needed_bytes(transform, image, static_cast<std::uint64_t>(head[2]),
                                   file_bytes, images::draw_words(key, sample), known);
}

using Plan = std::tuple<OwnedArray<std::int64_t>, OwnedArray<std::int64_t>,
                        OwnedArray<std::int64_t>>;

// Bytes of the header, and begin and end of those of the rows, that the crops of samples need.
Plan plan_reads(const Transform& transform, const Positions& positions, std::uint64_t key,
                const Words64& numbers, const Ints& lengths) {
  if (numbers.size() != lengths.size()) throw nb::value_error("the arrays differ in size");
  std::vector<std::int64_t> heads(numbers.size()), begins(numbers.size()), ends(numbers.size());
  {
    const WithoutGil released;
    std::vector<jpeg::RowPosition> copy;
    for (std::size_t row = 0; row < numbers.size(); ++row) {
      const auto needed = find_needed(transform, positions, key, numbers.data()[row],
                                      static_cast<std::uint64_t>(lengths.data()[row]), copy);
      heads[row] = static_cast<std::int64_t>(needed.header_bytes);
      begins[row] = static_cast<std::int64_t>(needed.begin);
      ends[row] = static_cast<std::int64_t>(needed.end);
    }
  }
  return {make_array<std::int64_t>(std::move(heads)), make_array<std::int64_t>(std::move(begins)),
          make_array<std::int64_t>(std::move(ends))};
}

std::vector<Problem> transform_rows(const Transform& transform, const Bytes& values, const Ints& bounds,
                                    std::size_t first, std::size_t end, const Words64& keys,
                                    const Words64& numbers, const Positions& positions,
                                    const OutBytes& out,
                                    const WritableColumn<std::int32_t>& crops,
                                    const Ints& lengths) {
  const std::size_t rows = keys.size(), row_bytes = transform.row_bytes();
  if (first > end || end > rows || numbers.size() != rows || out.size() != rows * row_bytes ||
      (crops.size() != 0 && crops.size() != rows * crop_columns) ||
      (lengths.size() != 0 && lengths.size() != rows))
    throw nb::value_error("the arrays differ in their rows");
  const auto at = view(bounds);
  std::vector<Problem> problems;
  const WithoutGil released;
  check_bounds(at, rows, values.size());
  use_transformer([&](Transformer& transformer) {
    std::vector<jpeg::RowPosition> copy, needed_copy;
    for (std::size_t row = first; row < end; ++row) {
      bool is_damaged;
      const auto known = positions.find(numbers.data()[row], copy, is_damaged);
      const auto file = cut(view_bytes(values), at, row);
      const auto words = images::draw_words(keys.data()[row], numbers.data()[row]);
      images::NeededBytes needed{0, 0, file.size()};
      if (lengths.size() != 0)
        needed = find_needed(transform, positions, keys.data()[row], numbers.data()[row],
                             static_cast<std::uint64_t>(lengths.data()[row]), needed_copy);
      const bool is_part =
          lengths.size() != 0 && needed.size() != static_cast<std::uint64_t>(lengths.data()[row]);
      std::uint8_t* to = out.data() + row * row_bytes;
      auto made = is_part ? transformer.transform_part(transform, file, needed, words, known, to)
                          : transformer.transform_file(transform, file, words, known, to);
      made.index_dropped |= is_damaged;
      if (!made.outcome.is_ok() || made.stray_bytes != 0 || made.index_dropped)
        problems.push_back(describe(row, made.outcome, made.stray_bytes, made.index_dropped));
      if (made.outcome.is_ok() && crops.size() != 0)
        std::ranges::copy(list_crop(made.crop, made.image), crops.data() + row * crop_columns);
    }
  });
  return problems;
}

using CropList = std::array<std::int32_t, crop_columns>;

std::tuple<Problem, CropList> transform_file(const Transform& transform, const Bytes& file,
                                             const Words64& words, const OutBytes& out) {
  if (out.size() != transform.row_bytes()) throw nb::value_error("the row has another size");
  const auto checked = check_words(words);
  images::Made made;
  {
    const WithoutGil released;
    use_transformer([&](Transformer& transformer) {
      made = transformer.transform_file(transform, view_bytes(file), checked, {}, out.data());
    });
  }
  return {describe(0, made.outcome, made.stray_bytes, false), list_crop(made.crop, made.image)};
}

// Sizes of JPEG files, (height, width) after each other; 0 for those of which there is a problem.
std::tuple<OwnedArray<std::int32_t>, std::vector<Problem>> read_image_sizes(
    const Bytes& values, const Ints& bounds, std::uint64_t pixels_max) {
  const std::size_t rows = bounds.size() == 0 ? 0 : bounds.size() - 1;
  std::vector<std::int32_t> sizes(2 * rows);
  std::vector<Problem> problems;
  {
    const WithoutGil released;
    check_bounds(view(bounds), rows, values.size());
    jpeg::Header header;
    for (std::size_t row = 0; row < rows; ++row) {
      const auto file = cut(view_bytes(values), view(bounds), row);
      auto outcome = jpeg::parse_header(file, pixels_max, header);
      // Memory is taken by these sizes, and nothing else has looked whether there are any pixels.
      if (outcome.is_ok() && file.size() - header.scan_offset < header.scan_bytes_min())
        outcome = {jpeg::Status::broken,
                   {file.size(), "the file ends inside the entropy-coded data"},
                   jpeg::no_row};
      if (outcome.is_ok()) {
        sizes[2 * row] = static_cast<std::int32_t>(header.height);
        sizes[2 * row + 1] = static_cast<std::int32_t>(header.width);
      } else {
        problems.push_back(describe(row, outcome, 0, false));
      }
    }
  }
  return {make_array<std::int32_t>(std::move(sizes)), std::move(problems)};
}

std::vector<Problem> decode_images(const Transform&, const Bytes& values, const Ints& bounds,
                                   std::size_t first, std::size_t end,
                                   const Column<std::int32_t>& sizes, const OutBytes& out,
                                   const Ints& out_bounds) {
  const std::size_t rows = sizes.size() / 2;
  if (first > end || end > rows) throw nb::value_error("the arrays differ in their rows");
  std::vector<Problem> problems;
  const WithoutGil released;
  check_bounds(view(bounds), rows, values.size());
  check_bounds(view(out_bounds), rows, out.size());
  use_transformer([&](Transformer& transformer) {
    for (std::size_t row = first; row < end; ++row) {
      const images::Size size{static_cast<std::uint32_t>(sizes.data()[2 * row]),
                              static_cast<std::uint32_t>(sizes.data()[2 * row + 1])};
      const auto room = out_bounds.data()[row + 1] - out_bounds.data()[row];
      if (std::int64_t{3} * size.height * size.width != room)
        throw nb::value_error("an image does not fit its row");
      const auto made = transformer.decode_whole(cut(view_bytes(values), view(bounds), row), size,
                                                 out.data() + out_bounds.data()[row]);
      if (!made.outcome.is_ok() || made.stray_bytes != 0)
        problems.push_back(describe(row, made.outcome, made.stray_bytes, false));
    }
  });
  return problems;
}

// Entries; for each file their number, their checksum, and width, height and bytes of its header.
using FoundPositions =
    std::tuple<OwnedArray<std::uint8_t>, OwnedArray<std::int64_t>, OwnedArray<std::uint32_t>,
               OwnedArray<std::int32_t>, std::vector<Problem>>;

FoundPositions find_positions(const Transform& transform, const Bytes& values, const Ints& bounds) {
  const std::size_t rows = bounds.size() == 0 ? 0 : bounds.size() - 1;
  std::vector<std::uint32_t> sums(rows);
  std::vector<std::int32_t> heads(3 * rows);
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> counts(rows);
  std::vector<Problem> problems;
  {
    const WithoutGil released;
    check_bounds(view(bounds), rows, values.size());
    std::vector<jpeg::RowPosition> positions;
    use_transformer([&](Transformer& transformer) {
      for (std::size_t row = 0; row < rows; ++row) {
        const auto made = transformer.find_positions(cut(view_bytes(values), view(bounds), row),
                                                     transform.pixels_max, positions);
        counts[row] = static_cast<std::int64_t>(positions.size());
        const auto* begin = reinterpret_cast<const std::uint8_t*>(positions.data());
        const std::size_t size = positions.size() * sizeof(jpeg::RowPosition);
        bytes.insert(bytes.end(), begin, begin + size);
        if (size != 0) {
          heads[3 * row] = static_cast<std::int32_t>(made.image.width);
          heads[3 * row + 1] = static_cast<std::int32_t>(made.image.height);
          heads[3 * row + 2] = static_cast<std::int32_t>(made.header_bytes);
        }
        sums[row] = crc32c({reinterpret_cast<const std::byte*>(begin), size});
        if (!made.outcome.is_ok() || made.stray_bytes != 0)
          problems.push_back(describe(row, made.outcome, made.stray_bytes, false));
      }
    });
  }
  return {make_array<std::uint8_t>(std::move(bytes)), make_array<std::int64_t>(std::move(counts)),
          make_array<std::uint32_t>(std::move(sums)), make_array<std::int32_t>(std::move(heads)),
          std::move(problems)};
}

CropList transform_pixels(const Transform& transform, const Pixels& pixels, const Words64& words,
                          const OutBytes& out) {
  if (pixels.shape(2) != 3 || out.size() != transform.row_bytes())
    throw nb::value_error("pixels are not RGB, or the row has another size");
  const auto size = check_size(static_cast<std::uint32_t>(pixels.shape(0)),
                               static_cast<std::uint32_t>(pixels.shape(1)));
  const auto checked = check_words(words);
  CropList crop;
  const WithoutGil released;
  use_transformer([&](Transformer& transformer) {
    const images::Crop made = transformer.transform_pixels(
        transform, {pixels.data(), pixels.shape(1) * 3}, size, checked, out.data());
    crop = list_crop(made, size);
    if (!made.fits) crop[2] = 0;
  });
  return crop;
}

}  // namespace

void bind_images(nb::module_& m) {
  nb::class_<Positions>(m, "RowPositions",
                        "Where each row of blocks of JPEG files begins, for all samples of a data set.")
      .def(nb::init<Bytes, Ints, Column<std::uint32_t>, Column<std::int32_t>>(),
           "entries"_a.noconvert(), "first"_a.noconvert(), "sums"_a.noconvert(),
           "heads"_a.noconvert());
  nb::class_<Transform>(m, "ImageTransform",
                             "A crop, a size, a layout and a type of images, for any thread.")
      .def(
          "__init__",
          [](Transform* self, const std::string& kind, std::uint32_t height,
             std::uint32_t width, std::uint32_t shorter, std::array<double, 2> area,
             std::array<double, 2> ratio, double flip, double flip_rows, bool is_planar,
             const std::string& type, std::array<float, 3> scale, std::array<float, 3> offset,
             std::uint64_t pixels_max, bool shrinks, std::array<bool, 2> flips_first,
             bool is_drawn, std::array<std::uint32_t, 2> resized, std::uint32_t longest,
             std::array<std::uint32_t, 2> cut, std::array<std::uint32_t, 4> padding,
             bool pads_small, const std::string& mode, std::array<float, 3> fill) {
            Transform transform;
            transform.rule = {parse_kind(kind), check_size(height, width), shorter, area[0],
                              area[1], ratio[0], ratio[1], flip, flip_rows, flips_first[0],
                              flips_first[1],
                              {is_drawn, {resized[0], resized[1]}, shorter, longest,
                               {cut[0], cut[1]}, padding, pads_small, parse_mode(mode)}};
            transform.fill = fill;
            transform.layout = is_planar ? images::Layout::chw : images::Layout::hwc;
            transform.type = parse_type(type);
            transform.scale = scale;
            transform.offset = offset;
            transform.pixels_max = pixels_max;
            transform.shrinks = shrinks;
            new (self) Transform(transform);
          },
          "kind"_a, "height"_a, "width"_a, "shorter"_a, "area"_a, "ratio"_a, "flip"_a,
          "flip_rows"_a, "is_planar"_a, "type"_a, "scale"_a, "offset"_a, "pixels_max"_a,
          "shrinks"_a = false, "flips_first"_a = std::array<bool, 2>{}, "is_drawn"_a = false,
          "resized"_a = std::array<std::uint32_t, 2>{}, "longest"_a = 0,
          "cut"_a = std::array<std::uint32_t, 2>{}, "padding"_a = std::array<std::uint32_t, 4>{},
          "pads_small"_a = false, "mode"_a = "constant", "fill"_a = std::array<float, 3>{})
      .def_prop_ro(
          "row_bytes", [](const Transform& transform) { return transform.row_bytes(); },
          "Bytes of one image.")
      .def("transform_rows", transform_rows, "values"_a.noconvert(), "bounds"_a.noconvert(),
           "first"_a, "end"_a, "keys"_a.noconvert(), "numbers"_a.noconvert(),
           "positions"_a, "out"_a.noconvert(), "crops"_a.noconvert(), "lengths"_a.noconvert(),
           "Make the rows [first, end) of the JPEG files values[bounds[i]:bounds[i + 1]].\n\n"
           "keys, numbers:  key of the random numbers of each row, and its sample.\n"
           "positions:      those of all samples that are known.\n"
           "crops:          gets left, top, width, height, flips (1 columns, 2 rows), width and\n"
           "                height of the image, for each row; may be empty.\n"
           "lengths:        bytes of each whole file, if the rows have only what `plan_reads` says;\n"
           "                empty if they are whole.\n\n"
           "Returns the rows of which there is something to say: row, status (0 made, 1 not ours,\n"
           "2 broken, 3 too large, 4 the whole file is needed, 5 too small), byte, row of blocks or -1, message, stray bytes that were\n"
           "skipped, and whether the positions did not fit.")
      .def("plan_reads", plan_reads, "positions"_a, "key"_a, "numbers"_a.noconvert(),
           "lengths"_a.noconvert(),
           "Return which bytes of samples of these lengths their crops need: of each header, from 0\n"
           "on, and begin and end of those of the rows.")
      .def("transform_file", transform_file, "file"_a.noconvert(), "words"_a.noconvert(),
           "out"_a.noconvert(),
           "Make one row of a JPEG file, by 44 random words. Returns what `transform_rows` says of\n"
           "it, and its crop.")
      .def("decode_images", decode_images, "values"_a.noconvert(), "bounds"_a.noconvert(),
           "first"_a, "end"_a, "sizes"_a.noconvert(), "out"_a.noconvert(),
           "out_bounds"_a.noconvert(),
           "Decode the rows [first, end) whole, to out[out_bounds[i]:out_bounds[i + 1]].\n\n"
           "sizes:  (height, width) of each image, as `read_image_sizes` gives them.\n\n"
           "Returns problems as `transform_rows` does.")
      .def("find_positions", find_positions, "values"_a.noconvert(), "bounds"_a.noconvert(),
           "Find where each row of blocks begins, which decodes all of each file.\n\n"
           "Returns 12 bytes for each row of blocks of all files, their number, their checksum\n"
           "and (width, height, bytes of the header) for each file, 0 for one that is not ours or is\n"
           "broken, and problems as `transform_rows` does.")
      .def("transform_pixels", transform_pixels, "pixels"_a.noconvert(), "words"_a.noconvert(),
           "out"_a.noconvert(),
           "Make one row of an image that is decoded, by 44 random words. Returns its crop, whose width is\n"
           "0 if the image is too small.")
      .def(
          "choose_crop",
          [](const Transform& transform, std::uint32_t height, std::uint32_t width,
             const Words64& words) {
            const auto size = check_size(height, width);
            return list_crop(images::choose_crop(transform.rule, size, check_words(words)),
                             size);
          },
          "height"_a, "width"_a, "words"_a.noconvert(),
          "Return the crop of an image of this size, as `transform_rows` gives it.");
  m.def("read_image_sizes", read_image_sizes, "values"_a.noconvert(), "bounds"_a.noconvert(),
        "pixels_max"_a,
        "Read height and width of JPEG files from their headers; 0 where there is a problem, as\n"
        "`ImageTransform.transform_rows` lists them.");
  m.def(
      "resample",
      [](const Pixels& pixels, std::uint32_t height, std::uint32_t width, unsigned kernel,
         const OutBytes& out) {
        if (kernel >= images::count_kernels()) throw nb::index_error("there is no such kernel");
        const auto rows = pixels.shape(0), columns = pixels.shape(1);
        check_size(height, width);
        if (rows * columns == 0 || pixels.shape(2) != 3 ||
            out.size() != std::size_t{height} * width * 3)
          throw nb::value_error("pixels are not RGB, or the row has another size");
        const WithoutGil released;
        const auto resize =
            images::make_resize(rows, columns, height, width, 0, 0, height, width);
        images::ResampleScratch scratch;
        images::Target target;
        target.pixels = out.data();
        images::resample({pixels.data(), columns * 3}, resize, target, scratch, kernel);
      },
      "pixels"_a.noconvert(), "height"_a, "width"_a, "kernel"_a, "out"_a.noconvert(),
      "Resize an RGB image by a kernel: 0 is portable, the others need their instructions.");
  m.def("count_resample_kernels", &images::count_kernels,
        "Return the number of kernels that this machine can run.");
}

}  // namespace penstock::binding
