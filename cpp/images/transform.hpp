// Images turned into rows of a batch: decoded, cropped, resized, and put in their layout and type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "images/crop.hpp"
#include "images/jpeg.hpp"
#include "images/padding.hpp"
#include "images/resample.hpp"

namespace penstock::images {

struct Transform {
  CropRule rule;
  Layout layout = Layout::hwc;
  Type type = Type::uint8;
  std::array<float, 3> scale{1, 1, 1};
  std::array<float, 3> offset{0, 0, 0};
  std::uint64_t pixels_max = ~std::uint64_t{0};
  std::array<float, 3> fill{};  // of pixels beside the image, as values of the type
  bool shrinks = false;  // JPEGs, while they are decoded, to no less than twice the target

  std::size_t row_bytes() const noexcept {
    return std::size_t{rule.target.height} * rule.target.width * 3 * size_of(type);
  }
};

// The bytes of a file that a crop needs, if the positions of its rows of blocks are known: those of its
// header, [0, header_bytes), and of its rows, [begin, end). One stretch, from 0, if they are neighbours.
struct NeededBytes {
  std::uint64_t header_bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const noexcept { return header_bytes + end - begin; }
  bool operator==(const NeededBytes&) const = default;
};
// image, header_bytes: of the file, whose size is `file_bytes`.
NeededBytes find_needed_bytes(const Transform& transform, Size image, std::uint64_t header_bytes,
                              std::uint64_t file_bytes, const Words& words,
                              std::span<const jpeg::RowPosition> positions);

// Outcome of one image; `stray_bytes` were skipped, and no pixel depends on them.
struct Made {
  jpeg::Outcome outcome;
  Crop crop;
  Size image;
  std::uint64_t header_bytes = 0;  // those before the entropy-coded data
  std::uint64_t stray_bytes = 0;
  bool index_dropped = false;  // positions that do not fit the file, which was decoded without them
};

// The pixels of a crop that a target shows, and how they are resized.
struct View {
  ShownAxis rows, columns;
  Resize resize;
};

// A thread's decoder and memory, which calls use again.
class Transformer {
 public:
  // Make the row of an image in the JPEG format. `positions`, if any, are those of its rows of blocks.
  Made transform_file(const Transform& transform, std::span<const std::byte> file,
                      const Words& words, std::span<const jpeg::RowPosition> positions,
                      std::uint8_t* out);

  // The same from the needed bytes alone, one stretch after the other. What does not fit is
  // `index_misfit`: it takes the whole file.
  Made transform_part(const Transform& transform, std::span<const std::byte> part,
                      const NeededBytes& needed, const Words& words,
                      std::span<const jpeg::RowPosition> positions, std::uint8_t* out);

  // Decode all pixels of a JPEG, whose size is known from its header.
  Made decode_whole(std::span<const std::byte> file, Size size, std::uint8_t* out);

  // Find the positions of all rows of blocks, which decodes everything. Empty if the file is not ours.
  Made find_positions(std::span<const std::byte> file, std::uint64_t pixels_max,
                      std::vector<jpeg::RowPosition>& positions);

  // Make the row of an image that was decoded elsewhere: `whole` has all pixels of `size`. Nothing is
  // made of an image that does not fit, as the crop says.
  Crop transform_pixels(const Transform& transform, Pixels whole, Size size, const Words& words,
                        std::uint8_t* out);

 private:
  // Make the row of an image from the pixels that its view needs.
  void finish(const Transform& transform, const Crop& crop, const View& view, const Pixels& pixels,
              std::uint8_t* out);

  // Decode what the taps need of a crop, to `region_`.
  jpeg::Outcome decode_region(const jpeg::Header& header, jpeg::Stretch scan, const Crop& crop,
                              unsigned shrink, const Resize& resize,
                              std::span<const jpeg::RowPosition> positions);

  jpeg::Decoder decoder_;
  ResampleScratch scratch_;
  std::vector<std::uint8_t> region_;
  std::vector<std::uint8_t> shown_;  // pixels of a padded target
};

}  // namespace penstock::images
