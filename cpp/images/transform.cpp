#include "images/transform.hpp"

#include <algorithm>
#include <string>

namespace penstock::images {
namespace {

// Taps of the pixels [begin, begin + size) of an axis that is shrunken: sources count from pixel
// begin / shrink. Sources at the edges lie in part beyond them.
Taps make_taps(std::uint32_t begin, std::uint32_t size, unsigned shrink, std::size_t all_targets,
               std::size_t first_target, std::size_t targets, std::uint32_t one) {
  const std::uint32_t end = (begin + size + shrink - 1) / shrink;
  return {end - begin / shrink, static_cast<double>(begin % shrink) / shrink,
          static_cast<double>(size) / shrink, all_targets, first_target, targets, one};
}

ShownAxis show_rows(const Transform& transform, const Crop& crop) {
  return show_axis(crop.first.top, transform.rule.target.height, crop.resized.height,
                   transform.rule.window.mode);
}

Taps make_row_taps(const Crop& crop, const ShownAxis& rows, unsigned shrink) {
  return make_taps(crop.top, crop.height, shrink, crop.resized.height, rows.first, rows.count,
                   65536);
}

View make_view(const Transform& transform, const Crop& crop, unsigned shrink) {
  View view;
  view.rows = show_rows(transform, crop);
  view.columns = show_axis(crop.first.left, transform.rule.target.width, crop.resized.width,
                           transform.rule.window.mode);
  view.resize = {make_row_taps(crop, view.rows, shrink),
                 make_taps(crop.left, crop.width, shrink, crop.resized.width, view.columns.first,
                           view.columns.count, 32768)};
  return view;
}

jpeg::Outcome describe_small(Size image) {
  return {jpeg::Status::too_small,
          {0, std::to_string(image.width) + " x " + std::to_string(image.height) + " pixels"},
          jpeg::no_row};
}

// By how much a crop can be shrunken so that its sides stay twice what they are resized to.
unsigned choose_shrink(const Transform& transform, const Crop& crop) {
  unsigned shrink = transform.shrinks ? 8 : 1;
  while (shrink > 1 && (crop.width < std::uint64_t{2} * shrink * crop.resized.width ||
                        crop.height < std::uint64_t{2} * shrink * crop.resized.height))
    shrink /= 2;
  return shrink;
}

Target make_target(const Transform& transform, const Crop& crop, std::uint8_t* out) {
  return {out,           transform.layout, transform.type, crop.flip_columns, crop.flip_rows,
          transform.scale, transform.offset};
}

constexpr std::size_t kept_bytes = std::size_t{32} << 20;  // of pixels, kept for a next image
constexpr std::uint64_t gap_bytes = 4096;  // between header and rows that are read all the same

}  // namespace

NeededBytes find_needed_bytes(const Transform& transform, Size image, std::uint64_t header_bytes,
                              std::uint64_t file_bytes, const Words& words,
                              std::span<const jpeg::RowPosition> positions) {
  const NeededBytes whole{0, 0, file_bytes};
  jpeg::Header header;
  header.width = image.width;
  header.height = image.height;
  // The heights of blocks are 8 or 16 rows of pixels, which the number of positions says.
  header.sampling = jpeg::Sampling::s420;
  if (positions.size() != header.mcu_rows()) header.sampling = jpeg::Sampling::s444;
  if (image.height == 0 || image.width == 0 || positions.size() != header.mcu_rows()) return whole;
  const Crop crop = choose_crop(transform.rule, image, words);
  if (!crop.fits) return whole;
  const ShownAxis shown = show_rows(transform, crop);
  const auto find_rows = [&](unsigned shrink) {
    const Taps rows = make_row_taps(crop, shown, shrink);
    return jpeg::find_rows(
        header, {0, crop.top / shrink + static_cast<std::uint32_t>(rows.first_source), 1,
                 static_cast<std::uint32_t>(rows.sources), shrink});
  };
  jpeg::RowRange range = find_rows(1);
  if (const unsigned shrink = choose_shrink(transform, crop); shrink != 1) {
    const jpeg::RowRange other = find_rows(shrink);  // pictures that cannot be shrunken need `range`
    range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
  }
  const std::uint64_t begin = positions[range.begin].offset;
  const std::uint64_t end = range.end < positions.size()
                                ? std::uint64_t{positions[range.end].offset} + 1
                                : file_bytes;
  if (begin < header_bytes || end <= begin || end > file_bytes) return whole;
  if (begin <= header_bytes + gap_bytes) return {0, 0, end};
  return {header_bytes, begin, end};
}

Made Transformer::transform_file(const Transform& transform, std::span<const std::byte> file,
                                 const Words& words,
                                 std::span<const jpeg::RowPosition> positions,
                                 std::uint8_t* out) {
  Made made;
  jpeg::Header header;
  made.outcome = jpeg::parse_header(file, transform.pixels_max, header);
  made.image = {header.height, header.width};
  if (!made.outcome.is_ok()) return made;
  made.crop = choose_crop(transform.rule, made.image, words);
  if (!made.crop.fits) {
    made.outcome = describe_small(made.image);
    return made;
  }
  const unsigned shrink = jpeg::can_shrink(header) ? choose_shrink(transform, made.crop) : 1;
  const View view = make_view(transform, made.crop, shrink);
  const Resize& resize = view.resize;
  if (positions.size() != header.mcu_rows()) {
    made.index_dropped = !positions.empty();
    positions = {};
  }
  made.outcome = decode_region(header, {0, file}, made.crop, shrink, resize, positions);
  if (made.outcome.status == jpeg::Status::index_misfit) {
    made.index_dropped = true;
    made.outcome = decode_region(header, {0, file}, made.crop, shrink, resize, {});
  }
  if (!made.outcome.is_ok()) return made;
  made.stray_bytes = header.stray_bytes + decoder_.stray_bytes();
  finish(transform, made.crop, view, {region_.data(), resize.horizontal.sources * 3}, out);
  return made;
}

Made Transformer::transform_part(const Transform& transform, std::span<const std::byte> part,
                                 const NeededBytes& needed, const Words& words,
                                 std::span<const jpeg::RowPosition> positions, std::uint8_t* out) {
  Made made;
  jpeg::Header header;
  made.outcome.status = jpeg::Status::index_misfit;
  if (part.size() != needed.size()) return made;
  const auto head = static_cast<std::size_t>(needed.header_bytes);
  const std::span<const std::byte> rows = part.subspan(head);
  if (!jpeg::parse_header(head == 0 ? part : part.first(head), transform.pixels_max, header)
           .is_ok() ||
      positions.size() != header.mcu_rows())
    return made;
  made.image = {header.height, header.width};
  made.crop = choose_crop(transform.rule, made.image, words);
  if (!made.crop.fits) return made;
  const unsigned shrink = jpeg::can_shrink(header) ? choose_shrink(transform, made.crop) : 1;
  const View view = make_view(transform, made.crop, shrink);
  const Resize& resize = view.resize;
  const auto outcome = decode_region(header, {needed.begin, rows}, made.crop, shrink, resize, positions);
  if (!outcome.is_ok()) return made;
  made.outcome = outcome;
  made.stray_bytes = header.stray_bytes;
  finish(transform, made.crop, view, {region_.data(), resize.horizontal.sources * 3}, out);
  return made;
}

jpeg::Outcome Transformer::decode_region(const jpeg::Header& header, jpeg::Stretch scan,
                                         const Crop& crop, unsigned shrink, const Resize& resize,
                                         std::span<const jpeg::RowPosition> positions) {
  // Only the pixels that the taps need: less than the crop where a centre is cut out of it.
  const jpeg::Region region{
      crop.left / shrink + static_cast<std::uint32_t>(resize.horizontal.first_source),
      crop.top / shrink + static_cast<std::uint32_t>(resize.vertical.first_source),
      static_cast<std::uint32_t>(resize.horizontal.sources),
      static_cast<std::uint32_t>(resize.vertical.sources), shrink};
  const std::size_t stride = std::size_t{region.width} * 3;
  const std::size_t bytes = stride * region.height;
  if (bytes <= kept_bytes && region_.capacity() > kept_bytes) region_ = {};
  region_.resize(bytes);
  return decoder_.decode(header, scan, region, {region_.data(), stride}, positions);
}

void Transformer::finish(const Transform& transform, const Crop& crop, const View& view,
                         const Pixels& pixels, std::uint8_t* out) {
  const Target target = make_target(transform, crop, out);
  if (view.rows.sources.empty() && view.columns.sources.empty())
    return resample(pixels, view.resize, target, scratch_);
  shown_.resize(view.rows.count * view.columns.count * 3);
  Target shown;
  shown.pixels = shown_.data();
  resample(pixels, view.resize, shown, scratch_);
  place_pixels(shown_, view.rows, view.columns, transform.rule.target, target, transform.fill);
}

Made Transformer::decode_whole(std::span<const std::byte> file, Size size, std::uint8_t* out) {
  Made made;
  jpeg::Header header;
  made.outcome = jpeg::parse_header(file, ~std::uint64_t{0}, header);
  if (!made.outcome.is_ok()) return made;
  made.image = {header.height, header.width};
  if (size.height != header.height || size.width != header.width) {
    made.outcome = {jpeg::Status::broken, {0, "the size has changed"}, jpeg::no_row};
    return made;
  }
  made.outcome = decoder_.decode(header, {0, file}, {0, 0, header.width, header.height},
                                 {out, std::size_t{header.width} * 3});
  made.stray_bytes = header.stray_bytes + decoder_.stray_bytes();
  return made;
}

Made Transformer::find_positions(std::span<const std::byte> file, std::uint64_t pixels_max,
                                 std::vector<jpeg::RowPosition>& positions) {
  Made made;
  jpeg::Header header;
  positions.clear();
  made.outcome = jpeg::parse_header(file, pixels_max, header);
  if (!made.outcome.is_ok()) return made;
  made.image = {header.height, header.width};
  made.header_bytes = header.scan_offset;
  made.outcome = decoder_.find_positions(header, {0, file}, positions);
  made.stray_bytes = header.stray_bytes + decoder_.stray_bytes();
  if (!made.outcome.is_ok()) positions.clear();
  return made;
}

Crop Transformer::transform_pixels(const Transform& transform, Pixels whole, Size size,
                                   const Words& words, std::uint8_t* out) {
  const Crop crop = choose_crop(transform.rule, size, words);
  if (!crop.fits) return crop;
  const View view = make_view(transform, crop, 1);
  const std::size_t row = crop.top + view.resize.vertical.first_source;
  const std::size_t column = crop.left + view.resize.horizontal.first_source;
  finish(transform, crop, view, {whole.first + row * whole.stride + column * 3, whole.stride}, out);
  return crop;
}

}  // namespace penstock::images
