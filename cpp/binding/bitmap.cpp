// Sets of samples, as bitmaps.
#include "order/bitmap.hpp"

#include <nanobind/nanobind.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using Words = Column<std::uint64_t>;
using Halves = Column<std::uint32_t>;
using Out = WritableColumn<std::uint64_t>;

// A bitmap, and the arrays that hold it.
struct BoundBitmap {
  BoundBitmap(std::uint64_t count, Words words_, Words counts_, Words bases_, Halves hints_,
              bool portable)
      : words(std::move(words_)),
        counts(std::move(counts_)),
        bases(std::move(bases_)),
        hints(std::move(hints_)),
        bitmap(count, view(words), view(counts), view(bases), view(hints), portable) {}

  Words words;
  Words counts;
  Words bases;
  Halves hints;
  Bitmap bitmap;
};

template <auto map>
std::size_t map_values(const BoundBitmap& bound, const Words& in, const Out& out) {
  if (in.size() != out.size()) throw nb::value_error("the arrays differ in size");
  const WithoutGil released;
  return (bound.bitmap.*map)(view(in), view(out));
}

Tuple<OwnedArray<std::uint64_t>, OwnedArray<std::uint64_t>, OwnedArray<std::uint32_t>> count_bits(
    const Words& words) {
  BitmapCounts counts = [&] {
    const WithoutGil released;
    return BitmapCounts(view(words));
  }();
  return nb::make_tuple(make_array<std::uint64_t>(std::move(counts.counts)),
                        make_array<std::uint64_t>(std::move(counts.bases)),
                        make_array<std::uint32_t>(std::move(counts.hints)));
}

std::size_t set(const Out& words, std::uint64_t count, const Words& samples) {
  if (words.size() < (count + 63) / 64) throw nb::value_error("there are fewer bits than samples");
  const WithoutGil released;
  return set_bits(view(words), count, view(samples));
}

}  // namespace

void bind_bitmap(nb::module_& m) {
  using namespace nb::literals;

  nb::class_<BoundBitmap>(m, "Bitmap",
                          "A set of samples of [0, count) as bits, with their counts.\n\n"
                          "portable:  use no instructions that only some processors have.")
      .def(nb::init<std::uint64_t, Words, Words, Words, Halves, bool>(), "count"_a,
           "words"_a.noconvert(), "counts"_a.noconvert(), "bases"_a.noconvert(),
           "hints"_a.noconvert(), "portable"_a = false)
      .def_prop_ro(
          "ones", [](const BoundBitmap& bound) { return bound.bitmap.ones(); },
          "Samples of the set.")
      .def("forward", map_values<&Bitmap::select>, "positions"_a.noconvert(),
           "samples"_a.noconvert(),
           "Write the sample that each number within the set has to `samples`.\n\n"
           "Returns the index of the first number outside [0, ones), or the size.")
      .def("inverse", map_values<&Bitmap::rank>, "samples"_a.noconvert(),
           "positions"_a.noconvert(),
           "Write the number within the set of each sample to `positions`.\n\n"
           "Returns the index of the first sample that is not in the set, or the size.");

  m.def("count_bits", count_bits, "words"_a.noconvert(),
        "Count the bits: columns `counts`, `bases` and `hints` of a `Bitmap`.");
  m.def("set_bits", set, "words"_a.noconvert(), "count"_a, "samples"_a.noconvert(),
        "Set the bits of samples.\n\n"
        "Returns the index of the first sample outside [0, count) or set before, or the size.");
}

}  // namespace penstock::binding
