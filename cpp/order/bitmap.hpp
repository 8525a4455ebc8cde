// A set of samples as a bitmap: the k-th sample of the set (select), and back (rank), in constant
// time and at most 1.04 bits a sample.
//
//   words   the bits, 2048 to a stretch of four blocks; those at and above `count` are 0.
//   counts  of each stretch: in the low 31 bits the ones before it since its region begins, a region
//           being 2^19 stretches; above, three times 11 bits, the ones in its first 1, 2, 3 blocks.
//   bases   ones before each region, and of the whole set.
//   hints   the stretch that holds one number j << hint_bits, and the last stretch. One to eight
//           stretches have a hint, so that all hints lie in a core's own cache.
//
// Select looks up two hints, which leave some eight stretches to choose from (their counts are a
// cache line or two), then the block by the stretch's counts, and counts within that block, which
// is a cache line. Values are mapped in groups, so that these lines are fetched ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace penstock {

inline constexpr std::size_t block_words = 8;
inline constexpr std::size_t stretch_words = 4 * block_words;
inline constexpr unsigned region_bits = 19;

// A hint is given for each 2^hint_bits ones.
unsigned hint_bits(std::uint64_t ones, std::size_t stretches) noexcept;

// What is derived from the words.
struct BitmapCounts {
  // Throws std::invalid_argument if the words are no whole stretches, or too many.
  explicit BitmapCounts(std::span<const std::uint64_t> words);

  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> bases;
  std::vector<std::uint32_t> hints;
};

// A set whose memory belongs to somebody else, for instance to a mapped file. Immutable. Columns
// that contradict each other give wrong samples, but no access outside of them.
class Bitmap {
 public:
  // Throws std::invalid_argument if a column's size does not fit.
  Bitmap(std::uint64_t count, std::span<const std::uint64_t> words,
         std::span<const std::uint64_t> counts, std::span<const std::uint64_t> bases,
         std::span<const std::uint32_t> hints, bool portable = false);

  std::uint64_t ones() const noexcept { return bases.back(); }

  // Number within the set -> sample. `numbers` and `samples` have one size and are the same memory
  // or do not overlap. Returns the index of the first number at or above ones(), or the size; the
  // values in `samples` after such a number are unspecified.
  std::size_t select(std::span<const std::uint64_t> numbers,
                     std::span<std::uint64_t> samples) const noexcept;

  // Sample -> number within the set, as select. Returns the index of the first sample that is not
  // in the set, or the size.
  std::size_t rank(std::span<const std::uint64_t> samples,
                   std::span<std::uint64_t> numbers) const noexcept;

  std::uint64_t count;
  std::span<const std::uint64_t> words;
  std::span<const std::uint64_t> counts;
  std::span<const std::uint64_t> bases;
  std::span<const std::uint32_t> hints;

  unsigned hint_bits;

 private:
  bool portable_;
};

// What bitmaps use here, unless they are told to be portable.
std::string_view bitmap_kernel() noexcept;

// Set the bits of these samples. Returns the index of the first sample that is at or above count,
// or whose bit was set before, or the size if there is none.
std::size_t set_bits(std::span<std::uint64_t> words, std::uint64_t count,
                     std::span<const std::uint64_t> samples) noexcept;

}  // namespace penstock
